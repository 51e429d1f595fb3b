//! What a compiler has no use for, given up before it sees the component: files, the network, further rights.
//!
//! In: a process with one thread. Out: one that has its three pipes and can open nothing.

use rustix::{
    io::Errno,
    process::{Resource, Rlimit, setrlimit},
    thread::{UnshareFlags, set_no_new_privs},
};
use std::{fs, io};

/// stdin, stdout and stderr.
const PIPES: u32 = 3;

/// Gives up everything but the three pipes, for this process and whatever it may start.
pub(super) fn confine() -> io::Result<()> {
    for fd in inherited()? {
        // SAFETY: nothing in this process knows of this file: what it opened itself since it began, it has closed.
        #[expect(unsafe_code, reason = "an inherited file belongs to nobody")]
        unsafe {
            rustix::io::close(fd);
        }
    }
    // Without a number left for one, no file can be opened, and no socket: neither a token nor a network is to be had.
    let none = Rlimit { current: Some(PIPES.into()), maximum: Some(PIPES.into()) };
    setrlimit(Resource::Nofile, none)?;
    set_no_new_privs(true)?;
    // A network without interfaces on top. Many a container forbids it, and then the limit above stands alone.
    // SAFETY: this does not touch the table of files, which is what makes other flags dangerous.
    #[expect(unsafe_code, reason = "rustix has no safe form for any flag")]
    let unshared = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) };
    if let Err(error) = unshared
        && error == Errno::INVAL
    {
        // The process has threads already, which would be a mistake of ours.
        return Err(error.into());
    }
    Ok(())
}

/// Open files but the pipes. Usually none: programs in Rust open theirs for themselves alone.
fn inherited() -> io::Result<Vec<i32>> {
    let open =
        fs::read_dir("/proc/self/fd")?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    let numbers = open.iter().filter_map(|name| name.to_str()?.parse().ok());
    // Through which the list itself was read is closed by now, and its number free.
    let open_still = |fd: &i32| fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok();
    Ok(numbers.filter(|fd| *fd >= PIPES as i32).filter(open_still).collect())
}
