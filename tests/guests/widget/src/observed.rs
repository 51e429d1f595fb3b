//! The modes that plan what they observe.

use oarlock_sdk::{Child, Failure, Reads};

use crate::{Widget, config_map};

/// The children that are there, and new ones up to `spec.size`, named after the annotation `touch`: a guest that is
/// shown too few of them makes too many.
pub(crate) fn repeat(widget: &Widget, reads: &Reads) -> Result<Vec<Child>, Failure> {
    let mut names: Vec<String> = reads.children()?.iter().map(|child| child.name.clone()).collect();
    let touch = widget.metadata.annotations.get("touch").map_or("0", String::as_str);
    let name = format!("{}-{touch}", widget.metadata.name);
    if names.len() < widget.spec.size as usize && !names.contains(&name) {
        names.push(name);
    }
    Ok(names.iter().map(|name| config_map(name, &widget.spec.text).into()).collect())
}
