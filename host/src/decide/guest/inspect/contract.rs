//! Compares what a component imports and exports with the contract in wit/.

use super::{Error, Facts};
use std::sync::LazyLock;
use wit_parser::{
    Function, PackageName, Resolve, Type, TypeDefKind, WorldId, WorldItem, WorldKey,
    decoding::{DecodedWasm, decode},
};

static OURS: LazyLock<(Resolve, WorldId)> = LazyLock::new(|| {
    let mut resolve = Resolve::default();
    let package = resolve
        .push_source("plugin.wit", include_str!("../../../../../wit/plugin.wit"))
        .expect("the contract is well-formed: the bindings are generated from it");
    let world = resolve.select_world(&[package], Some("plugin")).expect("the contract has this world");
    (resolve, world)
});

/// Interfaces of WASI 0.2 that the sealed context provides. Others reach out of the sandbox.
const WASI: &[(&str, &[&str])] = &[
    (
        "cli",
        &[
            "environment",
            "exit",
            "stderr",
            "stdin",
            "stdout",
            "terminal-input",
            "terminal-output",
            "terminal-stderr",
            "terminal-stdin",
            "terminal-stdout",
        ],
    ),
    ("clocks", &["monotonic-clock", "wall-clock"]),
    ("filesystem", &["preopens", "types"]),
    ("io", &["error", "poll", "streams"]),
    ("random", &["insecure", "insecure-seed", "random"]),
];

pub(super) fn check(bytes: &[u8]) -> Result<Facts, Error> {
    let malformed = |reason: String| Error::Malformed { reason };
    let (theirs, world) = match decode(bytes)
        .map_err(|source| malformed(super::super::one_line(&format!("{source:#}"))))?
    {
        DecodedWasm::Component(resolve, world) => (resolve, world),
        DecodedWasm::WitPackage(..) => return Err(malformed("it holds a contract and no code".to_owned())),
    };
    let world = &theirs.worlds[world];
    let names = |items: &wit_parser::IndexMap<WorldKey, WorldItem>| {
        let items = items.iter().filter(|(_, item)| !matches!(item, WorldItem::Type { .. }));
        items.map(|(key, _)| theirs.name_world_key(key)).collect::<Vec<_>>()
    };
    let facts = Facts {
        size: bytes.len(),
        imports: names(&world.imports),
        exports: names(&world.exports),
        wasi: world
            .imports
            .keys()
            .filter_map(|key| package(&theirs, key))
            .any(|package| package.namespace == "wasi"),
    };
    compare(&theirs, world)?;
    Ok(facts)
}

/// The version first: what else differs follows from it.
fn compare(theirs: &Resolve, world: &wit_parser::World) -> Result<(), Error> {
    check_version(theirs, world)?;
    check_imports(theirs, world)?;
    check_exports(theirs, world)
}

fn package<'a>(resolve: &'a Resolve, key: &WorldKey) -> Option<&'a PackageName> {
    match key {
        WorldKey::Name(_) => None,
        WorldKey::Interface(id) => Some(&resolve.packages[resolve.interfaces[*id].package?].name),
    }
}

fn ours() -> &'static PackageName {
    let (resolve, world) = &*OURS;
    let package = resolve.worlds[*world].package.expect("a world from a file is in a package");
    &resolve.packages[package].name
}

fn is_ours(package: &PackageName) -> bool {
    (&package.namespace, &package.name) == (&ours().namespace, &ours().name)
}

/// Before 1.0, the minor version is the one that breaks.
fn is_compatible(package: &PackageName) -> bool {
    match (&package.version, &ours().version) {
        (Some(theirs), Some(ours)) => {
            (theirs.major, theirs.minor, &theirs.pre) == (ours.major, ours.minor, &ours.pre)
        }
        (theirs, ours) => theirs == ours,
    }
}

fn check_version(theirs: &Resolve, world: &wit_parser::World) -> Result<(), Error> {
    let mut packages =
        world.imports.keys().chain(world.exports.keys()).filter_map(|key| package(theirs, key));
    match packages.find(|package| is_ours(package) && !is_compatible(package)) {
        Some(package) => Err(Error::Contract { theirs: package.to_string(), ours: ours().to_string() }),
        None => Ok(()),
    }
}

fn check_imports(theirs: &Resolve, world: &wit_parser::World) -> Result<(), Error> {
    let (contract, plugin) = &*OURS;
    let mut unknown = Vec::new();
    let mut remedy = "build it with the SDK of this host's version";
    for (key, item) in &world.imports {
        let name = theirs.name_world_key(key);
        let (WorldItem::Interface { id, .. }, Some(package)) = (item, package(theirs, key)) else {
            if matches!(item, WorldItem::Function(_)) {
                unknown.push(name);
            }
            continue;
        };
        let interface = &theirs.interfaces[*id];
        let interface_name = interface.name.as_deref().unwrap_or_default();
        if is_ours(package) {
            let known = contract.worlds[*plugin].imports.values().find_map(|item| match item {
                WorldItem::Interface { id, .. } => {
                    Some(&contract.interfaces[*id]).filter(|known| known.name == interface.name)
                }
                WorldItem::Function(_) | WorldItem::Type { .. } => None,
            });
            let Some(known) = known else {
                unknown.push(name);
                continue;
            };
            for function in interface.functions.values() {
                match known.functions.get(&function.name) {
                    Some(known) => check_type(
                        theirs,
                        function,
                        known,
                        &format!("import {interface_name}.{}", function.name),
                    )?,
                    None => unknown.push(format!("{name}#{}", function.name)),
                }
            }
        } else if !is_sealed(package, interface_name) {
            if package.namespace == "wasi" {
                remedy = "a guest has no network and no threads: leave out the library that needs them";
            }
            unknown.push(name);
        }
    }
    if unknown.is_empty() { Ok(()) } else { Err(Error::Imports { names: unknown, remedy }) }
}

fn is_sealed(package: &PackageName, interface: &str) -> bool {
    package.namespace == "wasi"
        && package
            .version
            .as_ref()
            .is_some_and(|version| (version.major, version.minor) == (0, 2) && version.pre.is_empty())
        && WASI.iter().any(|(name, interfaces)| *name == package.name && interfaces.contains(&interface))
}

fn check_exports(theirs: &Resolve, world: &wit_parser::World) -> Result<(), Error> {
    let (contract, plugin) = &*OURS;
    let mut missing = Vec::new();
    for (key, item) in &contract.worlds[*plugin].exports {
        let WorldItem::Function(known) = item else { continue };
        match world.exports.get(key) {
            Some(WorldItem::Function(function)) => check_type(theirs, function, known, &known.name)?,
            _ => missing.push(known.name.clone()),
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(Error::Exports { missing, ours: ours().to_string() }) }
}

fn check_type(theirs: &Resolve, function: &Function, known: &Function, name: &str) -> Result<(), Error> {
    let compare = Compare { ours: &OURS.0, theirs };
    let difference = if function.kind.is_async() != known.kind.is_async() {
        Some("it is async in one of them".to_owned())
    } else if function.params.len() != known.params.len() {
        Some(format!("it takes {} arguments, not {}", function.params.len(), known.params.len()))
    } else {
        let params = known.params.iter().zip(&function.params);
        params
            .map(|(known, theirs)| compare.types(&known.ty, &theirs.ty, &known.name))
            .chain([compare.optional(known.result.as_ref(), function.result.as_ref(), "result")])
            .find_map(Result::err)
    };
    match difference {
        None => Ok(()),
        Some(difference) => {
            Err(Error::Type { function: name.to_owned(), difference, ours: ours().to_string() })
        }
    }
}

/// Walks through two types in step, led by the contract's, whose depth is known.
struct Compare<'a> {
    ours: &'a Resolve,
    theirs: &'a Resolve,
}

impl Compare<'_> {
    fn optional(&self, ours: Option<&Type>, theirs: Option<&Type>, at: &str) -> Result<(), String> {
        match (ours, theirs) {
            (None, None) => Ok(()),
            (Some(ours), Some(theirs)) => self.types(ours, theirs, at),
            (Some(ours), None) => Err(format!("{at} is {} here and nothing there", kind(self.ours, ours))),
            (None, Some(theirs)) => {
                Err(format!("{at} is nothing here and {} there", kind(self.theirs, theirs)))
            }
        }
    }

    fn types(&self, ours: &Type, theirs: &Type, at: &str) -> Result<(), String> {
        let (ours, theirs) = (plain(self.ours, ours), plain(self.theirs, theirs));
        let differ = || {
            Err(format!("{at} is {} here and {} there", kind(self.ours, &ours), kind(self.theirs, &theirs)))
        };
        let (Type::Id(our_id), Type::Id(their_id)) = (ours, theirs) else {
            return if ours == theirs { Ok(()) } else { differ() };
        };
        let (ours, theirs) = (&self.ours.types[our_id], &self.theirs.types[their_id]);
        let at = ours.name.as_deref().unwrap_or(at);
        match (&ours.kind, &theirs.kind) {
            (TypeDefKind::Record(ours), TypeDefKind::Record(theirs)) => self.members(
                at,
                ours.fields.iter().map(|field| (&*field.name, Some(&field.ty))),
                theirs.fields.iter().map(|field| (&*field.name, Some(&field.ty))),
            ),
            (TypeDefKind::Variant(ours), TypeDefKind::Variant(theirs)) => self.members(
                at,
                ours.cases.iter().map(|case| (&*case.name, case.ty.as_ref())),
                theirs.cases.iter().map(|case| (&*case.name, case.ty.as_ref())),
            ),
            (TypeDefKind::Enum(ours), TypeDefKind::Enum(theirs)) => self.members(
                at,
                ours.cases.iter().map(|case| (&*case.name, None)),
                theirs.cases.iter().map(|case| (&*case.name, None)),
            ),
            (TypeDefKind::Option(ours), TypeDefKind::Option(theirs))
            | (TypeDefKind::List(ours), TypeDefKind::List(theirs)) => self.types(ours, theirs, at),
            (TypeDefKind::Result(ours), TypeDefKind::Result(theirs)) => {
                self.optional(ours.ok.as_ref(), theirs.ok.as_ref(), "ok")?;
                self.optional(ours.err.as_ref(), theirs.err.as_ref(), "error")
            }
            // The contract uses no other kinds of types.
            _ => differ(),
        }
    }

    fn members<'b>(
        &self,
        at: &str,
        ours: impl Iterator<Item = (&'b str, Option<&'b Type>)>,
        theirs: impl Iterator<Item = (&'b str, Option<&'b Type>)>,
    ) -> Result<(), String> {
        let (ours, theirs) = (ours.collect::<Vec<_>>(), theirs.collect::<Vec<_>>());
        for (name, _) in &ours {
            if !theirs.iter().any(|(other, _)| name == other) {
                return Err(format!("its {at} has no {name}"));
            }
        }
        for ((name, ours), (other, theirs)) in ours.iter().zip(&theirs) {
            if name != other {
                return Err(format!("its {at} has {other} where {name} is"));
            }
            self.optional(*ours, *theirs, &format!("{at}.{name}"))?;
        }
        match theirs.get(ours.len()) {
            Some((more, _)) => Err(format!("its {at} has {more} too")),
            None => Ok(()),
        }
    }
}

/// Follows aliases. A chain of them is as long as the component makes it, so this is a loop.
fn plain(resolve: &Resolve, of: &Type) -> Type {
    let mut of = *of;
    while let Type::Id(id) = of
        && let TypeDefKind::Type(next) = resolve.types[id].kind
    {
        of = next;
    }
    of
}

fn kind(resolve: &Resolve, of: &Type) -> String {
    match plain(resolve, of) {
        Type::Id(id) => {
            let of = &resolve.types[id];
            match &of.name {
                Some(name) => format!("{} {name}", of.kind.as_str()),
                None => of.kind.as_str().to_owned(),
            }
        }
        simple => format!("{simple:?}").to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said about a component that is built for the contract with these changes.
    fn verdict(changes: &[(&str, &str)]) -> String {
        let mut contract = include_str!("../../../../../wit/plugin.wit").to_owned();
        for (from, to) in changes {
            assert!(contract.contains(from), "{from}");
            contract = contract.replace(from, to);
        }
        let mut theirs = Resolve::default();
        let package = theirs.push_source("theirs.wit", &contract).expect("a contract");
        let world = theirs.select_world(&[package], Some("plugin")).expect("a world");
        compare(&theirs, &theirs.worlds[world])
            .err()
            .map_or_else(|| "good".to_owned(), |error| error.to_string())
    }

    #[test]
    fn contract_is_compared_by_names_and_types() {
        let reconcile = "export reconcile: func(object: string) -> result<plan, failure>;";
        let cases: &[(&[(&str, &str)], &str)] = &[
            (&[], "good"),
            (&[("@0.1.0", "@0.1.7")], "good"),
            (
                &[("@0.1.0", "@0.2.0")],
                "built for oarlock:plugin@0.2.0, this host speaks oarlock:plugin@0.1.0",
            ),
            (&[("@0.1.0", "@1.1.0")], "built for oarlock:plugin@1.1.0"),
            (&[("@0.1.0", "")], "built for oarlock:plugin, this host"),
            (&[(reconcile, "")], "does not export reconcile; a plugin exports"),
            (
                &[("now: func() -> string;", "now: func() -> string; zone: func() -> string;")],
                "imports oarlock:plugin/clock@0.1.0#zone, which this host does not provide",
            ),
            (
                &[
                    ("import log;", "import log; import dice;"),
                    ("interface log {", "interface dice { roll: func() -> u32; } interface log {"),
                ],
                "imports oarlock:plugin/dice@0.1.0, which",
            ),
            (&[("import log;", "import log; import roll: func() -> u32;")], "imports roll, which"),
            (
                &[("requeue-after: option<u32>", "requeue-after: option<u64>")],
                "component's reconcile does not have the type it has in oarlock:plugin@0.1.0: plan.requeue-after is \
                 u32 here and u64 there",
            ),
            (
                &[("conditions: list<condition>,", "")],
                "reconcile does not have the type it has in oarlock:plugin@0.1.0: its plan has no conditions",
            ),
            (
                &[("done: bool,", "done: bool, left: u32,")],
                "finalize does not have the type it has in oarlock:plugin@0.1.0: its teardown has left too",
            ),
            (&[("transient,", "passing,")], "its failure-kind has no transient"),
            (
                &[("failed(string),", "failed,")],
                "import children.list does not have the type it has in oarlock:plugin@0.1.0: readiness.failed is string here and nothing there",
            ),
            (
                &[(reconcile, "export reconcile: func(object: string) -> string;")],
                "result is result here and string there",
            ),
            (
                &[("reconcile: func(object: string)", "reconcile: func(object: string, old: string)")],
                "it takes 2 arguments, not 1",
            ),
            (
                &[(
                    "write: func(level: level, message: string);",
                    "write: func(level: level, message: string) -> bool;",
                )],
                "result is nothing here and bool there",
            ),
        ];
        for (changes, expected) in cases {
            let verdict = verdict(changes);
            assert!(verdict.contains(expected), "{verdict}");
        }
    }

    #[test]
    fn wasi_is_taken_where_it_is_sealed() {
        let package = |name: &str, version: &str| PackageName {
            namespace: "wasi".to_owned(),
            name: name.to_owned(),
            version: Some(version.parse().expect("a version")),
        };
        for (name, version, interface, expected) in [
            ("cli", "0.2.3", "stderr", true),
            ("clocks", "0.2.9", "wall-clock", true),
            ("clocks", "0.3.0", "wall-clock", false),
            ("io", "0.2.0-rc-2023-11-10", "streams", false),
            ("sockets", "0.2.3", "tcp", false),
            ("http", "0.2.3", "outgoing-handler", false),
        ] {
            assert_eq!(
                is_sealed(&package(name, version), interface),
                expected,
                "{name} {version} {interface}"
            );
        }
    }
}
