//! Label selectors in the notation of `kubectl -l`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write},
};

/// A parsed label selector. Selectors of the same requirements are equal and print the same text, however they
/// were written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selector {
    /// Sorted, each once; none selects everything.
    requirements: Box<[Requirement]>,
}

/// What one label must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Requirement {
    key: Box<str>,
    rule: Rule,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Rule {
    Exists,
    Absent,
    In(BTreeSet<Box<str>>),
    /// Also holds where the label is absent, as in Kubernetes.
    NotIn(BTreeSet<Box<str>>),
}

/// A malformed selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("label selector {selector:?} is malformed at {at:?}")]
pub struct ParseSelectorError {
    /// The whole text, cut where it is long.
    pub selector: String,
    /// Where it goes wrong.
    pub at: String,
}

impl Selector {
    /// Parses `a=b,c==d,e!=f,g in (h,i),j notin (k),l,!m`; the empty text selects everything.
    ///
    /// # Errors
    /// It is malformed, or a name or value is none that a label can have.
    pub fn parse(text: &str) -> Result<Self, ParseSelectorError> {
        // A guest wrote it: what is repeated in a message is cut.
        let cut = |text: &str| text.chars().take(200).collect::<String>();
        let mut scanner = Scanner { rest: text };
        let mut requirements = BTreeSet::new();
        if scanner.peek().is_some() {
            loop {
                let requirement = scanner
                    .requirement()
                    .ok_or_else(|| ParseSelectorError { selector: cut(text), at: cut(scanner.rest) })?;
                requirements.insert(requirement);
                match scanner.peek() {
                    None => break,
                    Some(',') => scanner.bump(),
                    Some(_) => return Err(ParseSelectorError { selector: cut(text), at: cut(scanner.rest) }),
                }
            }
        }
        Ok(Self { requirements: requirements.into_iter().collect() })
    }

    /// Whether it selects an object with these labels.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements.iter().all(|Requirement { key, rule }| {
            let value = labels.get(&**key).map(String::as_str);
            match rule {
                Rule::Exists => value.is_some(),
                Rule::Absent => value.is_none(),
                Rule::In(values) => value.is_some_and(|value| values.contains(value)),
                Rule::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            }
        })
    }

    /// Whether it selects every object.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Labels of which a selected object has at least one; `None` if no label is needed, or any value will do.
    /// An index looks a selector up by them.
    pub fn needed_labels(&self) -> Option<impl Iterator<Item = (&str, &str)>> {
        self.requirements.iter().find_map(|Requirement { key, rule }| match rule {
            Rule::In(values) => Some(values.iter().map(move |value| (&**key, &**value))),
            Rule::Exists | Rule::Absent | Rule::NotIn(_) => None,
        })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Requirement { key, rule }) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_char(',')?;
            }
            match rule {
                Rule::Exists => f.write_str(key)?,
                Rule::Absent => write!(f, "!{key}")?,
                Rule::In(values) => write_values(f, key, "=", "in", values)?,
                Rule::NotIn(values) => write_values(f, key, "!=", "notin", values)?,
            }
        }
        Ok(())
    }
}

fn write_values(
    f: &mut fmt::Formatter<'_>,
    key: &str,
    one: &str,
    many: &str,
    values: &BTreeSet<Box<str>>,
) -> fmt::Result {
    if let (Some(value), 1) = (values.first(), values.len()) {
        return write!(f, "{key}{one}{value}");
    }
    let values: Vec<&str> = values.iter().map(|value| &**value).collect();
    write!(f, "{key} {many} ({})", values.join(","))
}

/// What is left of the text; after a failure it starts where that is.
struct Scanner<'a> {
    rest: &'a str,
}

impl<'a> Scanner<'a> {
    /// The next character that is no blank.
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        self.rest.chars().next()
    }

    /// Past the character that `peek` showed.
    fn bump(&mut self) {
        self.rest = self.rest.get(1..).unwrap_or_default();
    }

    /// The next word, which may be empty, if it is valid.
    fn word(&mut self, is_valid: fn(&str) -> bool) -> Option<&'a str> {
        self.peek();
        let is_end =
            |c: char| matches!(c, ',' | '(' | ')' | '=' | '!' | '<' | '>') || c.is_ascii_whitespace();
        let (word, rest) = self.rest.split_at(self.rest.find(is_end).unwrap_or(self.rest.len()));
        is_valid(word).then(|| self.rest = rest)?;
        Some(word)
    }

    fn requirement(&mut self) -> Option<Requirement> {
        if self.peek()? == '!' {
            self.bump();
            return Some(Requirement { key: self.word(is_label_name)?.into(), rule: Rule::Absent });
        }
        let key = self.word(is_label_name)?.into();
        let rule = match self.peek() {
            None | Some(',') => Rule::Exists,
            Some('=') => {
                self.bump();
                if self.rest.starts_with('=') {
                    self.bump();
                }
                Rule::In(self.value()?)
            }
            Some('!') if self.rest.starts_with("!=") => {
                self.bump();
                self.bump();
                Rule::NotIn(self.value()?)
            }
            Some(_) => {
                // The operator is taken only once it is known to be one, so that a failure points at it.
                match self.word(|word| matches!(word, "in" | "notin"))? {
                    "in" => Rule::In(self.values()?),
                    _ => Rule::NotIn(self.values()?),
                }
            }
        };
        Some(Requirement { key, rule })
    }

    fn value(&mut self) -> Option<BTreeSet<Box<str>>> {
        Some(BTreeSet::from([self.word(is_label_value)?.into()]))
    }

    /// `(a,b)`; a value left out is the empty one.
    fn values(&mut self) -> Option<BTreeSet<Box<str>>> {
        let mut values = BTreeSet::new();
        (self.peek()? == '(').then(|| self.bump())?;
        loop {
            values.insert(self.word(is_label_value)?.into());
            match self.peek()? {
                ',' => self.bump(),
                ')' => {
                    self.bump();
                    return Some(values);
                }
                _ => return None,
            }
        }
    }
}

/// A label's name: `name`, or `prefix/name` with a DNS subdomain as prefix. `in` and `notin` are operators.
fn is_label_name(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let is_subdomain = |prefix: &str| {
        prefix.len() <= 253
            && prefix.split('.').all(|part| {
                is_word(part)
                    && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            })
    };
    !matches!(text, "in" | "notin") && name.len() <= 63 && is_word(name) && prefix.is_none_or(is_subdomain)
}

fn is_label_value(text: &str) -> bool {
    text.is_empty() || text.len() <= 63 && is_word(text)
}

/// Letters and digits, with `-`, `_` and `.` between them.
fn is_word(text: &str) -> bool {
    let is_edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    is_edge(bytes.first())
        && is_edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> BTreeMap<String, String> {
        let pairs = text.split(' ').filter(|pair| !pair.is_empty());
        pairs.filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect()
    }

    #[test]
    fn selector_prints_one_text_however_it_is_written() {
        for (written, printed) in [
            ("", ""),
            ("  ", ""),
            ("a", "a"),
            (" ! a ", "!a"),
            ("a=b", "a=b"),
            ("a == b", "a=b"),
            ("a=", "a="),
            ("a!=", "a!="),
            ("a != b", "a!=b"),
            ("a in (y, x ,y)", "a in (x,y)"),
            ("a in(x)", "a=x"),
            ("a notin (x)", "a!=x"),
            ("a\tnotin\n(y,x)", "a notin (x,y)"),
            ("a in ()", "a="),
            ("a in (,x)", "a in (,x)"),
            ("b,a,b", "a,b"),
            ("a=in,b=notin", "a=in,b=notin"),
            ("example.com/a_B.c-d=E_f.g-1", "example.com/a_B.c-d=E_f.g-1"),
            ("a=b,c==d,e!=f,g in (h,i),j notin (k),l,!m", "a=b,c=d,e!=f,g in (h,i),j!=k,l,!m"),
        ] {
            let selector = Selector::parse(written).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(selector.to_string(), printed, "{written:?}");
            assert_eq!(Selector::parse(printed).as_ref(), Ok(&selector), "{written:?}");
        }
    }

    #[test]
    fn selector_matches_as_kubernetes_does() {
        for (selector, object, expected) in [
            ("", "", true),
            ("", "a=b", true),
            ("a", "a=", true),
            ("a", "b=a", false),
            ("!a", "b=a", true),
            ("!a", "a=", false),
            ("a=b", "a=b c=d", true),
            ("a=b", "a=c", false),
            ("a=b", "", false),
            ("a=", "a=", true),
            ("a=", "", false),
            ("a!=b", "a=c", true),
            ("a!=b", "", true),
            ("a!=b", "a=b", false),
            ("a in (b,c)", "a=c", true),
            ("a in (b,c)", "a=d", false),
            ("a in (b,c)", "", false),
            ("a notin (b,c)", "a=d", true),
            ("a notin (b,c)", "", true),
            ("a notin (b,c)", "a=c", false),
            ("a=b,c", "a=b c=d", true),
            ("a=b,c", "a=b", false),
            ("a,!a", "a=b", false),
        ] {
            let parsed = Selector::parse(selector).unwrap();
            assert_eq!(parsed.matches(&labels(object)), expected, "{selector:?} on {object:?}");
        }
    }

    #[test]
    fn selector_is_refused_with_the_place_where_it_goes_wrong() {
        let long = format!("a={}", "x".repeat(64));
        for (written, at) in [
            (",", ","),
            ("a,", ""),
            ("a,,b", ",b"),
            ("=b", "=b"),
            ("a b", "b"),
            ("a in", ""),
            ("a in x", "x"),
            ("a in (x", ""),
            ("a in (x y)", "y)"),
            ("a in (x))", ")"),
            ("in (x)", "in (x)"),
            ("a>1", ">1"),
            ("a===b", "=b"),
            ("a!b", "!b"),
            ("!", ""),
            ("!a=b", "=b"),
            ("-a", "-a"),
            ("a-=b", "a-=b"),
            ("a=b_", "b_"),
            ("ü", "ü"),
            ("a=ü", "ü"),
            ("Example.com/a", "Example.com/a"),
            ("/a", "/a"),
            ("a/b/c", "a/b/c"),
            ("a/", "a/"),
            (&long, &long[2..]),
        ] {
            let error = Selector::parse(written).expect_err(written);
            assert_eq!(error.at, at, "{written:?}");
        }
        assert!(Selector::parse(&"ä".repeat(1_000_000)).unwrap_err().to_string().len() < 1_000);
    }

    #[test]
    fn a_selected_object_has_one_of_the_needed_labels() {
        for (selector, needed) in [
            ("", None),
            ("a,b!=c,!d", None),
            ("a=b", Some(vec![("a", "b")])),
            ("x!=y,a in (b,c)", Some(vec![("a", "b"), ("a", "c")])),
        ] {
            let selector = Selector::parse(selector).unwrap();
            assert_eq!(selector.needed_labels().map(Iterator::collect), needed, "{selector}");
        }
    }
}
