//! What lists and watches look like on the wire: objects stay text until [`Object::decode`].

use super::{Delivery, Page};
use crate::object::{Gvk, Object, ResourceVersion};
use futures::{Stream, StreamExt};
use kube::core::Status;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// The longest line of a watch. The API server takes requests of 3 MiB; stored objects can grow a little by
/// defaults and conversion, and their text by escapes.
const LINE_BYTES: usize = 16 << 20;

#[derive(Deserialize)]
struct ListText<'a> {
    #[serde(default)]
    metadata: ListMetadata,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ListMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

/// One page; an object that cannot be decoded does not hide the others.
pub(super) fn page(gvk: &Gvk, text: &[u8]) -> Result<Page, serde_json::Error> {
    let list: ListText<'_> = serde_json::from_slice(text)?;
    let items = list.items.unwrap_or_default();
    let mut page = Page {
        objects: Vec::with_capacity(items.len()),
        undecodable: Vec::new(),
        version: ResourceVersion::new(&list.metadata.resource_version),
        next: Some(list.metadata.next).filter(|next| !next.is_empty()),
    };
    for item in items {
        match object(gvk, item) {
            Ok(object) => page.objects.push(object),
            Err(why) => page.undecodable.push(why),
        }
    }
    Ok(page)
}

fn object(gvk: &Gvk, text: &RawValue) -> Result<Object, String> {
    #[derive(Deserialize)]
    struct Named {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        name: String,
        namespace: Option<String>,
    }
    Object::decode(gvk, text.get()).map_err(|error| {
        let why = super::response::with_sources(&error);
        match serde_json::from_str::<Named>(text.get()) {
            Ok(Named { metadata: Metadata { name, namespace: Some(namespace) } }) => {
                format!("{namespace}/{name}: {why}")
            }
            Ok(Named { metadata: Metadata { name, namespace: None } }) => format!("{name}: {why}"),
            Err(_) => why,
        }
    })
}

#[derive(Deserialize)]
struct LineText<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// What one line of a watch says.
pub(super) enum Said {
    Delivery(Delivery),
    /// The API server ends the watch with an error.
    Error(Box<Status>),
}

/// Reads one line. Fails where the line is no watch event at all: the stream cannot be trusted then.
pub(super) fn line(gvk: &Gvk, text: &[u8]) -> Result<Said, serde_json::Error> {
    #[derive(Deserialize)]
    struct Bookmark {
        metadata: ListMetadata,
    }
    let line: LineText<'_> = serde_json::from_slice(text)?;
    let delivery = match &*line.kind {
        "ADDED" | "MODIFIED" => object(gvk, line.object).map(|object| Delivery::Applied(Box::new(object))),
        "DELETED" => object(gvk, line.object).map(|object| Delivery::Deleted(Box::new(object))),
        "BOOKMARK" => {
            let bookmark: Bookmark = serde_json::from_str(line.object.get())?;
            Ok(Delivery::Bookmark(ResourceVersion::new(&bookmark.metadata.resource_version)))
        }
        "ERROR" => return Ok(Said::Error(Box::new(serde_json::from_str(line.object.get())?))),
        other => Err(format!("an event of the unknown type {other:?}")),
    };
    Ok(Said::Delivery(delivery.unwrap_or_else(Delivery::Undecodable)))
}

/// One line of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Text(Vec<u8>),
    /// Longer than a line may be; dropped, with its length.
    TooLong(usize),
    /// The body ended within a line: the connection was cut.
    Cut,
}

/// Splits a body into lines without keeping more than one of them.
pub(super) fn lines<C: AsRef<[u8]>, E>(
    chunks: impl Stream<Item = Result<C, E>> + Unpin,
) -> impl Stream<Item = Result<Line, E>> {
    struct Split<S, C> {
        chunks: S,
        /// The chunk being split, and how much of it has been.
        chunk: Option<(C, usize)>,
        line: Vec<u8>,
        length: usize,
    }
    let start = Split { chunks, chunk: None, line: Vec::new(), length: 0 };
    futures::stream::unfold(start, |mut split| async move {
        loop {
            let Some((chunk, done)) = &mut split.chunk else {
                match split.chunks.next().await {
                    Some(Ok(chunk)) => split.chunk = Some((chunk, 0)),
                    Some(Err(error)) => return Some((Err(error), split)),
                    None if split.length == 0 => return None,
                    None => {
                        split.length = 0;
                        return Some((Ok(Line::Cut), split));
                    }
                }
                continue;
            };
            let rest = &chunk.as_ref()[*done..];
            let end = rest.iter().position(|byte| *byte == b'\n');
            let piece = &rest[..end.unwrap_or(rest.len())];
            split.length += piece.len();
            if split.length <= LINE_BYTES {
                split.line.extend_from_slice(piece);
            } else {
                split.line = Vec::new();
            }
            match end {
                None => split.chunk = None,
                Some(end) => {
                    *done += end + 1;
                    let length = std::mem::take(&mut split.length);
                    let line = std::mem::take(&mut split.line);
                    let line = if length <= LINE_BYTES { Line::Text(line) } else { Line::TooLong(length) };
                    if line != Line::Text(Vec::new()) {
                        return Some((Ok(line), split));
                    }
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn widget() -> Gvk {
        Gvk::new("cases.example.com/v1", "Widget")
    }

    #[test]
    fn page_keeps_what_can_be_decoded_and_names_what_cannot() {
        let text = r#"{"kind":"WidgetList","metadata":{"resourceVersion":"7","continue":"c"},"items":[
            {"metadata":{"name":"a","namespace":"n"},"spec":{"big":9007199254740993}},
            {"metadata":{"name":"b","namespace":"n","labels":{"x":1}}},
            {"metadata":{"name":"c","generation":"x"}},
            3]}"#;
        let page = page(&widget(), text.as_bytes()).unwrap();
        assert_eq!(page.objects.len(), 1);
        assert!(page.objects[0].body.contains("9007199254740993"));
        assert_eq!(page.undecodable.len(), 3);
        assert!(
            page.undecodable[0].starts_with("n/b: cannot decode an object of kind Widget"),
            "{:?}",
            page.undecodable
        );
        assert!(page.undecodable[1].starts_with("c: "), "{:?}", page.undecodable);
        assert_eq!((page.version.as_str(), page.next.as_deref()), ("7", Some("c")));
    }

    #[test]
    fn page_without_items_is_empty() {
        let page =
            page(&widget(), br#"{"metadata":{"resourceVersion":"7","continue":""},"items":null}"#).unwrap();
        assert!(page.objects.is_empty() && page.next.is_none());
    }

    #[test]
    fn line_tells_the_five_types_apart() {
        let said = |text: &str| match line(&widget(), text.as_bytes()).unwrap() {
            Said::Delivery(Delivery::Applied(object)) => format!("applied {}", object.key.name),
            Said::Delivery(Delivery::Deleted(object)) => format!("deleted {}", object.key.name),
            Said::Delivery(Delivery::Bookmark(version)) => format!("bookmark {}", version.as_str()),
            Said::Delivery(Delivery::Undecodable(why)) => format!("undecodable {why}"),
            Said::Error(status) => format!("error {}", status.code),
        };
        assert_eq!(said(r#"{"type":"ADDED","object":{"metadata":{"name":"a"}}}"#), "applied a");
        assert_eq!(said(r#"{"object":{"metadata":{"name":"a"}},"type":"MODIFIED"}"#), "applied a");
        assert_eq!(said(r#"{"type":"DELETED","object":{"metadata":{"name":"a"}}}"#), "deleted a");
        assert_eq!(
            said(r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}"#),
            "bookmark 9"
        );
        assert_eq!(said(r#"{"type":"ERROR","object":{"kind":"Status","code":410}}"#), "error 410");
        assert!(
            said(r#"{"type":"ADDED","object":{"metadata":{}}}"#)
                .starts_with("undecodable an object of kind Widget")
        );
        assert!(said(r#"{"type":"NEW","object":{}}"#).starts_with("undecodable an event"));
        assert!(line(&widget(), b"<html>").is_err());
    }

    async fn split(chunks: &[&str]) -> Vec<Line> {
        let chunks: Vec<Result<Vec<u8>, Infallible>> =
            chunks.iter().map(|chunk| Ok(chunk.as_bytes().to_vec())).collect();
        lines(futures::stream::iter(chunks)).map(|line| line.unwrap_or(Line::Cut)).collect().await
    }

    #[tokio::test]
    async fn lines_are_split_wherever_chunks_end() {
        let text = |text: &str| Line::Text(text.into());
        assert_eq!(split(&["ab\ncd\n"]).await, [text("ab"), text("cd")]);
        assert_eq!(split(&["a", "b\n\nc", "", "d", "\n"]).await, [text("ab"), text("cd")]);
        assert_eq!(split(&["ab\nc"]).await, [text("ab"), Line::Cut]);
        assert_eq!(split(&[]).await, []);
        let long = "x".repeat(LINE_BYTES);
        assert_eq!(split(&[&long, "x\n", "a\n"]).await, [Line::TooLong(LINE_BYTES + 1), text("a")]);
    }
}
