//! Several children in one message: sorted, so that it does not flap, and bounded, so that people read it.
//!
//! Never: I/O, clocks.

use crate::decide::plan::cut;

/// Children that are told of in full; of the others the names are enough to find them.
const IN_FULL: usize = 10;
/// Names after these; nobody reads more, and the first say what is wrong.
const NAMED: usize = 50;
/// Bytes of what is said of one child.
const TEXT: usize = 1_024;

/// One message of what there is to say of each child, by name: `Job demo/a: is on its way; Job demo/b: …`.
pub(super) fn message(mut children: Vec<(String, String)>) -> String {
    children.sort_unstable();
    let rest = children.split_off(children.len().min(IN_FULL));
    let mut parts: Vec<String> = children.iter().map(|(_, text)| cut(text, TEXT)).collect();
    if !rest.is_empty() {
        let more = rest.len().saturating_sub(NAMED);
        let names: Vec<_> = rest.iter().take(NAMED).map(|(name, _)| name.as_str()).collect();
        let end = if more > 0 { format!(" and {more} others") } else { String::new() };
        parts.push(format!("and {} more: {}{end}", rest.len(), names.join(", ")));
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn children(count: usize) -> Vec<(String, String)> {
        (0..count).rev().map(|n| (format!("Job {n:03}"), format!("Job {n:03}: why"))).collect()
    }

    #[test]
    fn few_are_told_in_full_and_sorted() {
        assert_eq!(message(Vec::new()), "");
        assert_eq!(message(children(2)), "Job 000: why; Job 001: why");
    }

    #[test]
    fn many_are_named_and_counted() {
        let twelve = message(children(12));
        assert!(twelve.ends_with("Job 009: why; and 2 more: Job 010, Job 011"), "{twelve}");
        let many = message(children(500));
        assert!(
            many.contains("; and 490 more: Job 010, ") && many.ends_with("Job 059 and 440 others"),
            "{many}"
        );
        assert!(many.len() < 1_000, "{}", many.len());
    }

    #[test]
    fn text_of_each_is_cut() {
        let long =
            vec![("Job a".to_owned(), "ä".repeat(5_000)), ("Job b".to_owned(), "Job b: why".to_owned())];
        let message = message(long);
        assert!(message.len() < 1_100 && message.ends_with("; Job b: why"), "{}", message.len());
    }
}
