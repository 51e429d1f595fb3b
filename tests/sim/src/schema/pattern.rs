//! The regular expressions of schemas: what they match, nothing more.
//!
//! The syntax is the part of RE2's that schemas use; the rest is refused. Matching takes time linear in the text.

use std::{iter::Peekable, str::Chars};

/// A compiled expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pattern {
    text: String,
    program: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// Takes one character, if it is one of these (or, negated, if it is not).
    Take(Class),
    /// Goes on at both places.
    Fork(usize, usize),
    Start,
    End,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Class {
    negated: bool,
    ranges: Vec<(char, char)>,
}

impl Class {
    fn has(&self, character: char) -> bool {
        self.ranges.iter().any(|(from, to)| (*from..=*to).contains(&character)) != self.negated
    }
}

enum Tree {
    Take(Class),
    Start,
    End,
    Sequence(Vec<Tree>),
    Either(Vec<Tree>),
    Repeat(Box<Tree>, usize, Option<usize>),
}

/// A repetition is spelled out, so the number is bounded: as in RE2.
const REPETITIONS: usize = 1_000;

impl Pattern {
    /// Compiles an expression; the error says what is wrong with it.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        let mut rest = text.chars().peekable();
        let tree = either(&mut rest)?;
        if rest.next().is_some() {
            return Err(format!("unexpected ) in {text:?}"));
        }
        let mut program = Vec::new();
        compile(&tree, &mut program);
        Ok(Self { text: text.to_owned(), program })
    }

    /// As it was written.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether some part of the text matches.
    pub(crate) fn is_match(&self, text: &str) -> bool {
        let mut current = Vec::new();
        let mut rest = text.chars();
        let mut is_start = true;
        loop {
            let character = rest.next();
            let mut seen = vec![false; self.program.len() + 1];
            let mut next = Vec::new();
            current.push(0);
            while let Some(at) = current.pop() {
                if std::mem::replace(&mut seen[at], true) {
                    continue;
                }
                match self.program.get(at) {
                    None => return true,
                    Some(Step::Fork(one, other)) => current.extend([*one, *other]),
                    Some(Step::Start) if is_start => current.push(at + 1),
                    Some(Step::End) if character.is_none() => current.push(at + 1),
                    Some(Step::Take(class)) if character.is_some_and(|character| class.has(character)) => {
                        next.push(at + 1);
                    }
                    Some(_) => {}
                }
            }
            if character.is_none() {
                return false;
            }
            current = next;
            is_start = false;
        }
    }
}

type Rest<'a> = Peekable<Chars<'a>>;

fn either(rest: &mut Rest<'_>) -> Result<Tree, String> {
    let mut branches = vec![Tree::Sequence(Vec::new())];
    while let Some(&character) = rest.peek() {
        if character == ')' {
            break;
        }
        rest.next();
        let Some(Tree::Sequence(items)) = branches.last_mut() else { unreachable!("each is a sequence") };
        match character {
            '|' => branches.push(Tree::Sequence(Vec::new())),
            '^' => items.push(Tree::Start),
            '$' => items.push(Tree::End),
            '.' => items.push(Tree::Take(Class { negated: true, ranges: vec![('\n', '\n')] })),
            '[' => items.push(Tree::Take(class(rest)?)),
            '\\' => items.push(Tree::Take(escape(rest)?)),
            '(' => {
                if rest.next_if_eq(&'?').is_some() && rest.next_if_eq(&':').is_none() {
                    return Err("groups with flags or names are not supported".into());
                }
                items.push(either(rest)?);
                rest.next_if_eq(&')').ok_or("missing )")?;
            }
            '*' | '+' | '?' | '{' => {
                let (least, most) = match character {
                    '*' => (0, None),
                    '+' => (1, None),
                    '?' => (0, Some(1)),
                    _ => repetitions(rest)?,
                };
                rest.next_if_eq(&'?'); // shortest first: the same texts match
                let repeated = items.pop().ok_or("nothing to repeat")?;
                items.push(Tree::Repeat(Box::new(repeated), least, most));
            }
            other => items.push(Tree::Take(Class { negated: false, ranges: vec![(other, other)] })),
        }
    }
    Ok(Tree::Either(branches))
}

fn repetitions(rest: &mut Rest<'_>) -> Result<(usize, Option<usize>), String> {
    let mut text = String::new();
    loop {
        match rest.next() {
            Some('}') => break,
            Some(character) => text.push(character),
            None => return Err("missing }".into()),
        }
    }
    let number = |text: &str| match text.parse() {
        Ok(number) if number <= REPETITIONS => Ok(number),
        _ => Err(format!("bad repetition {{{text}}}")),
    };
    Ok(match text.split_once(',') {
        None => (number(&text)?, Some(number(&text)?)),
        Some((least, "")) => (number(least)?, None),
        Some((least, most)) => (number(least)?, Some(number(most)?)),
    })
}

fn class(rest: &mut Rest<'_>) -> Result<Class, String> {
    let mut class = Class { negated: rest.next_if_eq(&'^').is_some(), ranges: Vec::new() };
    loop {
        let from = match rest.next().ok_or("missing ]")? {
            ']' if !class.ranges.is_empty() => return Ok(class),
            '\\' => {
                let escaped = escape(rest)?;
                match escaped.ranges[..] {
                    [(from, to)] if from == to && !escaped.negated => from,
                    _ if escaped.negated => {
                        return Err("a negated class within a class is not supported".into());
                    }
                    _ => {
                        class.ranges.extend(escaped.ranges);
                        continue;
                    }
                }
            }
            '[' if rest.peek() == Some(&':') => return Err("named classes are not supported".into()),
            from => from,
        };
        let mut to = from;
        if rest.peek() == Some(&'-') {
            let mut ahead = rest.clone();
            ahead.next();
            if ahead.peek().is_some_and(|end| *end != ']') {
                rest.next();
                to = match rest.next() {
                    Some('\\') => escape(rest)?.ranges[0].0,
                    Some(to) => to,
                    None => return Err("missing ]".into()),
                };
            }
        }
        class.ranges.push((from, to));
    }
}

fn escape(rest: &mut Rest<'_>) -> Result<Class, String> {
    let character = rest.next().ok_or("nothing after \\")?;
    let ranges = match character.to_ascii_lowercase() {
        'd' => vec![('0', '9')],
        'w' => vec![('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')],
        's' => vec![('\t', '\n'), ('\x0c', '\r'), (' ', ' ')],
        'n' if character == 'n' => vec![('\n', '\n')],
        't' if character == 't' => vec![('\t', '\t')],
        'r' if character == 'r' => vec![('\r', '\r')],
        other if other.is_alphanumeric() => return Err(format!("\\{character} is not supported")),
        _ => vec![(character, character)],
    };
    Ok(Class { negated: character.is_ascii_uppercase(), ranges })
}

fn compile(tree: &Tree, program: &mut Vec<Step>) {
    match tree {
        Tree::Take(class) => program.push(Step::Take(class.clone())),
        Tree::Start => program.push(Step::Start),
        Tree::End => program.push(Step::End),
        Tree::Sequence(items) => items.iter().for_each(|item| compile(item, program)),
        Tree::Either(branches) => {
            let mut ends = Vec::new();
            for (index, branch) in branches.iter().enumerate() {
                let fork = program.len();
                if index + 1 < branches.len() {
                    program.push(Step::Fork(fork + 1, 0));
                }
                compile(branch, program);
                if index + 1 < branches.len() {
                    ends.push(program.len());
                    program.push(Step::Fork(0, 0));
                    program[fork] = Step::Fork(fork + 1, program.len());
                }
            }
            for end in ends {
                program[end] = Step::Fork(program.len(), program.len());
            }
        }
        Tree::Repeat(repeated, least, most) => {
            for _ in 0..*least {
                compile(repeated, program);
            }
            let start = program.len();
            match most {
                None => {
                    program.push(Step::Fork(0, 0));
                    compile(repeated, program);
                    program.push(Step::Fork(start, start));
                    program[start] = Step::Fork(start + 1, program.len());
                }
                Some(most) => {
                    let mut forks = Vec::new();
                    for _ in *least..*most {
                        forks.push(program.len());
                        program.push(Step::Fork(0, 0));
                        compile(repeated, program);
                    }
                    for fork in forks {
                        program[fork] = Step::Fork(fork + 1, program.len());
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_what_re2_does() {
        let reason = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$";
        for (pattern, yes, no) in [
            (reason, &["A", "Ready", "A,b:c_"][..], &["", "1", "A,", "Ünready"][..]),
            ("a|b+c", &["xa", "bbc"], &["", "bb", "c"]),
            ("^(?:a|b)c{2,3}$", &["acc", "bccc"], &["ac", "acccc", "abcc"]),
            (r"^\d+(\.\w{1,})?$", &["1", "12.ab"], &["", ".a", "1."]),
            ("^[^a-c-]*$", &["", "xyz"], &["xa", "x-"]),
            (r"^[-\w.]+?$", &["a-b.c"], &["", "a/b"]),
            ("", &["", "x"], &[]),
            ("^(a*)*$", &["", "aaa"], &["ab"]),
            ("^a?$", &["", "a"], &["aa"]),
        ] {
            let pattern = Pattern::new(pattern).unwrap();
            for text in yes {
                assert!(pattern.is_match(text), "{pattern:?} {text:?}");
            }
            for text in no {
                assert!(!pattern.is_match(text), "{pattern:?} {text:?}");
            }
        }
        for pattern in ["(a", "a)", "[a", "*", r"\b", "(?i)a", "a{2000}", "[[:alpha:]]", "a{x}"] {
            assert!(Pattern::new(pattern).is_err(), "{pattern}");
        }
    }
}
