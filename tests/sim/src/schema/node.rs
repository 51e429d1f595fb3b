//! A schema in the form that the rest walks, made from an `OpenAPI` document or from a CRD.

use super::pattern::Pattern;
use serde_json::{Map, Value};
use std::{collections::BTreeMap, ops::Deref};

/// A kind's schema. It may refer to itself, so its parts refer to each other by number; the first is the whole.
#[derive(Debug)]
pub(crate) struct Schema {
    nodes: Vec<Node>,
}

/// What a value may be.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) form: Form,
    pub(crate) rules: Rules,
}

type Id = usize;

/// The shape of a value, and what of it is owned as one.
#[derive(Debug)]
pub(crate) enum Form {
    /// Anything: one value to its owner, or, not atomic, objects member by member.
    Any { atomic: bool },
    /// No object and no list.
    Scalar(Scalar),
    /// Declared members, and what those of other names are.
    Object { members: BTreeMap<Box<str>, Member>, others: Option<Id>, atomic: bool },
    /// Items of one kind.
    List { items: Id, list: List },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    String,
    Integer,
    Number,
    Boolean,
    /// A number or a string.
    Either,
}

/// How the items of a list are told apart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// They are not: the list is one value.
    Atomic,
    /// By value.
    Set,
    /// By the values of these members.
    Map(Vec<Box<str>>),
}

#[derive(Debug)]
pub(crate) struct Member {
    node: Id,
    pub(crate) default: Option<Value>,
}

/// What else a valid value has to be.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(crate) required: Vec<Box<str>>,
    pub(crate) nullable: bool,
    pub(crate) one_of: Vec<Value>,
    pub(crate) format: Option<Box<str>>,
    pub(crate) pattern: Option<Pattern>,
    pub(crate) minimum: Option<Bound>,
    pub(crate) maximum: Option<Bound>,
    pub(crate) multiple_of: Option<f64>,
    /// Of a string, in characters; of a list, in items; of an object, in members.
    pub(crate) least: Option<u64>,
    pub(crate) most: Option<u64>,
    /// The messages of rules that say that the value may not change; empty for a rule without.
    pub(crate) immutable: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) at: f64,
    pub(crate) excluded: bool,
}

/// A place in a schema.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'a> {
    schema: &'a Schema,
    node: &'a Node,
}

impl Deref for At<'_> {
    type Target = Node;

    fn deref(&self) -> &Node {
        self.node
    }
}

impl<'a> At<'a> {
    fn at(self, id: Id) -> Self {
        Self { schema: self.schema, node: &self.schema.nodes[id] }
    }

    /// Its form, for as long as the schema lives.
    pub(crate) fn shape(self) -> &'a Form {
        &self.node.form
    }

    /// A declared member, with its default.
    pub(crate) fn declared(self, name: &str) -> Option<(Self, &'a Member)> {
        let Form::Object { members, .. } = &self.node.form else { return None };
        members.get(name).map(|member| (self.at(member.node), member))
    }

    /// All declared members.
    pub(crate) fn members(self) -> impl Iterator<Item = (&'a str, Self, &'a Member)> {
        let members = match &self.node.form {
            Form::Object { members, .. } => Some(members),
            Form::Any { .. } | Form::Scalar(_) | Form::List { .. } => None,
        };
        let members = members.into_iter().flatten();
        members.map(move |(name, member)| (&**name, self.at(member.node), member))
    }

    /// What members are that are not declared.
    pub(crate) fn others(self) -> Option<Self> {
        match &self.node.form {
            Form::Object { others, .. } => others.map(|id| self.at(id)),
            Form::Any { .. } => Some(self),
            Form::Scalar(_) | Form::List { .. } => None,
        }
    }

    /// A member, declared or not.
    pub(crate) fn member(self, name: &str) -> Option<Self> {
        self.declared(name).map(|(at, _)| at).or_else(|| self.others())
    }

    /// What each item of a list is.
    pub(crate) fn items(self) -> Self {
        match &self.node.form {
            Form::List { items, .. } => self.at(*items),
            Form::Any { .. } | Form::Scalar(_) | Form::Object { .. } => self,
        }
    }
}

/// The whole.
const ROOT: Id = 0;
/// What every schema has beside its own parts: anything, by members.
const DEDUCED: Id = 1;

/// What an unsupported or wrong schema is refused with: where, and why.
pub(crate) type Problem = (String, String);

impl Schema {
    /// The schema of a built-in kind, by its name among the definitions of its document.
    pub(crate) fn builtin(definitions: &Map<String, Value>, name: &str) -> Result<Self, Problem> {
        let mut builder = Builder { definitions, named: BTreeMap::new(), nodes: Vec::new(), is_crd: false };
        builder.start();
        builder.named.insert(name, ROOT);
        builder.fill(ROOT, &definitions[name], "")?;
        Ok(builder.finish())
    }

    /// The schema of a CRD's kind; `definitions` have what its metadata is.
    pub(crate) fn custom(definitions: &Map<String, Value>, schema: &Value) -> Result<Self, Problem> {
        let mut builder = Builder { definitions, named: BTreeMap::new(), nodes: Vec::new(), is_crd: true };
        builder.start();
        builder.fill(ROOT, schema, "")?;
        let metadata = builder.metadata()?;
        let string = builder.push(Form::Scalar(Scalar::String));
        if let Form::Object { members, .. } = &mut builder.nodes[ROOT].form {
            for (name, node) in [("apiVersion", string), ("kind", string), ("metadata", metadata)] {
                members.insert(name.into(), Member { node, default: None });
            }
        }
        Ok(builder.finish())
    }

    /// The whole.
    pub(crate) fn root(&self) -> At<'_> {
        At { schema: self, node: &self.nodes[ROOT] }
    }
}

pub(super) const METADATA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

struct Builder<'a> {
    definitions: &'a Map<String, Value>,
    /// What is made from the definitions already.
    named: BTreeMap<&'a str, Id>,
    nodes: Vec<Node>,
    is_crd: bool,
}

impl<'a> Builder<'a> {
    fn start(&mut self) {
        for atomic in [true, false] {
            self.push(Form::Any { atomic });
        }
    }

    fn finish(self) -> Schema {
        Schema { nodes: self.nodes }
    }

    fn push(&mut self, form: Form) -> Id {
        self.nodes.push(Node { form, rules: Rules::default() });
        self.nodes.len() - 1
    }

    fn metadata(&mut self) -> Result<Id, Problem> {
        let is_crd = std::mem::replace(&mut self.is_crd, false);
        let id = self.named(METADATA);
        self.is_crd = is_crd;
        id
    }

    fn named(&mut self, name: &'a str) -> Result<Id, Problem> {
        if let Some(id) = self.named.get(name) {
            return Ok(*id);
        }
        let id = self.push(Form::Any { atomic: true });
        self.named.insert(name, id);
        match self.definitions.get(name) {
            Some(schema) => self.fill(id, schema, "")?,
            None => return Err((String::new(), format!("there is no definition of {name}"))),
        }
        Ok(id)
    }

    fn add(&mut self, schema: &'a Value, path: &str) -> Result<Id, Problem> {
        if !self.is_crd {
            let referred = schema.pointer("/allOf/0/$ref").or_else(|| schema.get("$ref"));
            if let Some(name) = referred.and_then(Value::as_str).and_then(|name| name.rsplit('/').next()) {
                return self.named(name);
            }
        }
        let id = self.push(Form::Any { atomic: true });
        self.fill(id, schema, path)?;
        Ok(id)
    }

    fn fill(&mut self, id: Id, schema: &'a Value, path: &str) -> Result<(), Problem> {
        let form = self.form(schema, path)?;
        let rules = if self.is_crd {
            rules(schema, path)?
        } else {
            Rules { one_of: one_of(schema), required: required(schema), ..Rules::default() }
        };
        self.nodes[id] = Node { form, rules };
        Ok(())
    }

    fn form(&mut self, schema: &'a Value, path: &str) -> Result<Form, Problem> {
        if self.is_crd {
            let unsupported = ["$ref", "allOf", "anyOf", "oneOf", "not", "x-kubernetes-embedded-resource"];
            let is_either = schema["x-kubernetes-int-or-string"] == true;
            if let Some(word) = unsupported.iter().find(|word| schema.get(**word).is_some() && !is_either) {
                return Err((path.to_owned(), format!("the simulator does not support {word}")));
            }
        }
        if schema["x-kubernetes-int-or-string"] == true || schema.get("oneOf").is_some() {
            return Ok(Form::Scalar(Scalar::Either));
        }
        let keeps = schema["x-kubernetes-preserve-unknown-fields"] == true;
        Ok(match schema["type"].as_str() {
            Some("string") if schema["format"] == "int-or-string" => Form::Scalar(Scalar::Either),
            Some("string") => Form::Scalar(Scalar::String),
            Some("integer") => Form::Scalar(Scalar::Integer),
            Some("number") => Form::Scalar(Scalar::Number),
            Some("boolean") => Form::Scalar(Scalar::Boolean),
            Some("array") => self.list(schema, path)?,
            Some("object") => self.object(schema, keeps, path)?,
            Some(other) => return Err((path.to_owned(), format!("unknown type {other:?}"))),
            None if self.is_crd && !keeps => {
                return Err((path.to_owned(), "must not be empty for specified object fields".into()));
            }
            None => Form::Any { atomic: !keeps },
        })
    }

    fn list(&mut self, schema: &'a Value, path: &str) -> Result<Form, Problem> {
        let items = match schema.get("items") {
            Some(items) => self.add(items, &format!("{path}.items"))?,
            None => return Err((format!("{path}.items"), "must be specified".into())),
        };
        let keys = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
        let keys: Vec<_> = keys.filter_map(Value::as_str).map(Box::from).collect();
        let list = match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => List::Set,
            Some("map") if keys.is_empty() => {
                return Err((
                    format!("{path}.x-kubernetes-list-map-keys"),
                    "must not be empty if x-kubernetes-list-type is map".into(),
                ));
            }
            Some("map") => List::Map(keys),
            Some(_) | None => List::Atomic,
        };
        Ok(Form::List { items, list })
    }

    fn object(&mut self, owner: &'a Value, keeps: bool, path: &str) -> Result<Form, Problem> {
        let mut members = BTreeMap::new();
        for (name, schema) in owner["properties"].as_object().into_iter().flatten() {
            let node = self.add(schema, &format!("{path}.properties[{name}]"))?;
            let default = schema.get("default").filter(|default| {
                // The name in a reference is written only if there is one.
                self.is_crd
                    || *default != ""
                    || name != "name"
                    || required(owner).iter().any(|known| **known == **name)
            });
            members.insert(name.as_str().into(), Member { node, default: default.cloned() });
        }
        let others = match &owner["additionalProperties"] {
            Value::Bool(true) => Some(DEDUCED),
            each @ Value::Object(_) => Some(self.add(each, &format!("{path}.additionalProperties"))?),
            _ => keeps.then_some(DEDUCED),
        };
        if members.is_empty() && others.is_none() && !self.is_crd {
            return Ok(Form::Any { atomic: true });
        }
        Ok(Form::Object { members, others, atomic: owner["x-kubernetes-map-type"] == "atomic" })
    }
}

fn one_of(schema: &Value) -> Vec<Value> {
    schema["enum"].as_array().cloned().unwrap_or_default()
}

fn required(schema: &Value) -> Vec<Box<str>> {
    schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).map(Box::from).collect()
}

fn rules(schema: &Value, path: &str) -> Result<Rules, Problem> {
    let bound = |name: &str, excluded: &str| {
        schema[name].as_f64().map(|at| Bound { at, excluded: schema[excluded] == true })
    };
    let size = |end: &str| {
        ["Length", "Items", "Properties"].iter().find_map(|of| schema[format!("{end}{of}")].as_u64())
    };
    let mut immutable = Vec::new();
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        if rule["rule"] != "self == oldSelf" {
            let what =
                format!("the simulator supports no rule but \"self == oldSelf\", not {}", rule["rule"]);
            return Err((format!("{path}.x-kubernetes-validations"), what));
        }
        immutable.push(rule["message"].as_str().unwrap_or_default().to_owned());
    }
    let pattern = schema["pattern"].as_str().map(Pattern::new).transpose();
    Ok(Rules {
        required: required(schema),
        nullable: schema["nullable"] == true,
        one_of: one_of(schema),
        format: schema["format"].as_str().map(Box::from),
        pattern: pattern.map_err(|why| (format!("{path}.pattern"), why))?,
        minimum: bound("minimum", "exclusiveMinimum"),
        maximum: bound("maximum", "exclusiveMaximum"),
        multiple_of: schema["multipleOf"].as_f64(),
        least: size("min"),
        most: size("max"),
        immutable,
    })
}
