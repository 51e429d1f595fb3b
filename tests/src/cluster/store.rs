//! What is asked of etcd past the API server.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// How long etcd may take: it answers at once, but whoever waits may hold a guard.
const DEADLINE: Duration = Duration::from_secs(10);

/// Raises the alarm that etcd raises when its quota is used up, or takes it back: `ACTIVATE` or `DEACTIVATE`.
pub(super) fn no_space(port: u16, action: &str) -> Result<()> {
    let body = format!(r#"{{"action":"{action}","memberID":"0","alarm":"NOSPACE"}}"#);
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("cannot reach etcd")?;
    stream.set_read_timeout(Some(DEADLINE))?;
    write!(
        stream,
        "POST /v3/maintenance/alarm HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("etcd does not answer")?;
    ensure!(answer.starts_with("HTTP/1.1 200 "), "etcd says {answer}");
    Ok(())
}
