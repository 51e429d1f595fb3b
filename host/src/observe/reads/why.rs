//! Why a guest is called, in words for people.

use super::Read;
use std::fmt;

/// Reads that are named; a guest may make a thousand.
const NAMED: usize = 8;

/// Why a guest has to be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// No answer for this parent is kept: it is new, or the host is.
    First,
    /// Another version of the plugin made the answer that is kept.
    Version,
    /// The parent itself differs: its content, or it is another object of the same name.
    Parent,
    /// The parent is the same, and these reads answer otherwise; never none.
    Reads(Vec<Read>),
    /// Nothing differs; the last call failed and trying again can help.
    Retry,
}

impl fmt::Display for Why {
    /// `the object changed`, or `changed: get ConfigMap demo/settings, children`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("the first call"),
            Self::Version => f.write_str("a new version of the plugin"),
            Self::Parent => f.write_str("the object changed"),
            Self::Retry => f.write_str("the last call failed"),
            Self::Reads(reads) => {
                for (index, read) in reads.iter().take(NAMED).enumerate() {
                    write!(f, "{}{read}", if index == 0 { "changed: " } else { ", " })?;
                }
                match reads.len().saturating_sub(NAMED) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
        }
    }
}

impl fmt::Display for Read {
    /// `get ConfigMap demo/settings`, `list Pod demo app=web`, `children`, `previous status`, `clock`. A list
    /// without namespace is one of all.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Get { watch, namespace: Some(namespace), name } => {
                write!(f, "get {} {namespace}/{name}", watch.gvk.kind)
            }
            Self::Get { watch, namespace: None, name } => write!(f, "get {} {name}", watch.gvk.kind),
            Self::List { watch, namespace, selector } => {
                write!(f, "list {}", watch.gvk.kind)?;
                namespace.iter().try_for_each(|namespace| write!(f, " {namespace}"))?;
                selector.iter().try_for_each(|selector| write!(f, " {selector}"))
            }
            Self::Children => f.write_str("children"),
            Self::PreviousStatus => f.write_str("previous status"),
            Self::Clock => f.write_str("clock"),
        }
    }
}
