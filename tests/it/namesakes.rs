//! What comes back under the name of something that went is another object.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::world::{World, string};

/// F35: a namespace is deleted with all that is in it, and made again at once, with an object of the same name.
#[tokio::test]
async fn namespace_that_is_made_again_has_children_of_its_own_only() -> Result<()> {
    let world = World::new("namesakes").await?;
    let mut audit = world.plane.audit().await?;
    let mut children = Vec::new();
    for text in ["one", "two", "three"] {
        let from = audit.mark().await?;
        let widget = world.set("Widget", "w1", json!({"text": text})).await?;
        let child = world
            .until("ConfigMap", "w1-cm", text, |child| {
                ensure!(child["data"]["text"] == text, "{}", child["data"]);
                Ok(())
            })
            .await?;
        assert_eq!(
            string(&child, "/metadata/ownerReferences/0/uid"),
            string(&widget, "/metadata/uid"),
            "{child}"
        );
        world.until_says("Widget", "w1", ["Ready", "True", "ChildrenReady"]).await?;
        world.until_at_rest().await?;
        let child = world.get("ConfigMap", "w1-cm").await?;
        children.push(string(&child, "/metadata/uid").to_owned());

        world.delete("Namespace", &world.namespace).await?;
        world.until_gone("Namespace", &world.namespace).await?;
        let to = audit.mark().await?;
        let writes = world.host_writes(&audit, from, to);
        let made = writes.iter().filter(|write| *write == "patch configmaps w1-cm 201").count();
        assert_eq!(made, 1, "{writes:?}");
        World::within(world.plane, &world.namespace).await?;
    }
    children.dedup();
    assert_eq!(children.len(), 3, "{children:?}");
    Ok(())
}
