//! `oarlock explain`: what the host knows of one object, and how the command reaches the host.

mod reach;
mod text;

use super::{Failure, NAMESPACE, cluster::Connection};
use crate::operate::explain::{Explanation, Question};
use anyhow::Context as _;
use clap::ValueEnum;
use serde_json::Value;
use std::{
    io::{self, Write},
    process::ExitCode,
};

/// Tells of one object when the host last looked at it and why, what it wrote, and what is next.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The kind, as for kubectl: website, websites.demo.oarlock.dev; or kind and name as one, website/blog
    kind: String,
    /// The object's name
    name: Option<String>,
    // Takes the place of the global option of this name.
    /// The object's namespace [default: that of the context]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Only what this plugin does with it
    #[arg(long, value_name = "NAME")]
    plugin: Option<String>,
    /// How to show it
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// Where the host serves /explain, such as 127.0.0.1:8080; otherwise its pod is asked, through the API
    /// server
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// The host's namespace
    #[arg(long, default_value = NAMESPACE, env = "OARLOCK_NAMESPACE", value_name = "NAME")]
    host_namespace: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
    Yaml,
}

/// Asks the host, and shows what it says.
pub async fn run(args: Args, connection: &Connection) -> anyhow::Result<ExitCode> {
    let (kind, name) = object(&args.kind, args.name.as_deref())?;
    // As for kubectl, an empty namespace is none that was named.
    let given = args.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    let question = |namespace: &str| Question {
        kind: kind.to_owned(),
        namespace: given.unwrap_or(namespace).to_owned(),
        name: name.to_owned(),
        plugin: args.plugin.clone(),
    };
    let answer = if let Some(url) = &args.admin {
        // The cluster is not asked; a context may tell all the same which namespace is meant.
        let namespace = match connection.config().await {
            Ok(config) => config.default_namespace,
            Err(error) if given.is_none() && connection.is_named() => return Err(error),
            Err(_) => "default".to_owned(),
        };
        reach::admin(url, &question(&namespace)).await?
    } else {
        let cluster = connection.connect().await?;
        let question = question(cluster.client.default_namespace());
        reach::pod(&cluster, &args.host_namespace, &question).await?
    };
    show(&answer, args.output, &mut io::stdout())?;
    Ok(ExitCode::SUCCESS)
}

/// Kind and name, given as two words or, as kubectl prints them, as one.
fn object<'a>(kind: &'a str, name: Option<&'a str>) -> anyhow::Result<(&'a str, &'a str)> {
    let help = "name one object: `oarlock explain website blog` or `oarlock explain website/blog`";
    match (kind.split_once('/'), name) {
        (None, Some(name)) => Ok((kind, name)),
        (Some((kind, name)), None) if !name.is_empty() && !name.contains('/') => Ok((kind, name)),
        (None, None) => Err(Failure::new(format!("which {kind} is not said"), help).into()),
        (Some(_), _) => Err(Failure::new(format!("{kind} is not one kind and one name"), help).into()),
    }
}

/// Shows an answer of the host: for programs as it came, with what a newer host may say beside.
fn show(answer: &str, output: Output, out: &mut impl Write) -> anyhow::Result<()> {
    let unreadable =
        || Failure::new("the host's answer cannot be read", "is it of the version of this command?");
    let value: Value = serde_json::from_str(answer).with_context(unreadable)?;
    match output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?,
        Output::Yaml => writeln!(out, "{}", serde_saphyr::to_string(&value)?.trim_end())?,
        Output::Text => {
            let explanation: Explanation = serde_json::from_value(value).with_context(unreadable)?;
            out.write_all(text::of(&explanation).as_bytes())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn object_is_named_by_two_words_or_one() {
        let named = |kind: &'static str, name| object(kind, name).map_err(|error| error.to_string());
        assert_eq!(named("website", Some("blog")), Ok(("website", "blog")));
        assert_eq!(named("websites.demo.oarlock.dev/blog", None), Ok(("websites.demo.oarlock.dev", "blog")));
        assert_eq!(named("website", None), Err("which website is not said".to_owned()));
        for (kind, name) in [("website/blog", Some("blog")), ("website/", None), ("a/b/c", None)] {
            assert_eq!(named(kind, name), Err(format!("{kind} is not one kind and one name")));
        }
    }

    #[test]
    fn answer_is_shown_whole_for_programs() {
        let answer = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "Explanation", "newer": [1]});
        let shown = |output| {
            let mut out = Vec::new();
            show(&answer.to_string(), output, &mut out).map(|()| String::from_utf8(out).unwrap())
        };
        assert_eq!(serde_json::from_str::<Value>(&shown(Output::Json).unwrap()).unwrap(), answer);
        assert_eq!(serde_saphyr::from_str::<Value>(&shown(Output::Yaml).unwrap()).unwrap(), answer);
        assert_eq!(shown(Output::Text).unwrap_err().to_string(), "the host's answer cannot be read");
    }
}
