//! Text of guests that the API would not take, and events that nobody could read any more for their number.

use anyhow::{Result, ensure};
use oarlock_tests::{eventually, host};
use serde_json::{Value, json};

use crate::world::{DEADLINE, Lab, World, condition, says, string};

/// What stands at the end of text that was cut.
const CUT_MARK: &str = "… (cut)";
/// Bytes of a condition's message, as in `metav1.Condition`.
const MAX_MESSAGE: usize = 32_768;

fn named(r#type: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": r#type, "status": status, "reason": reason, "message": message})
}

/// `^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`
fn is_reason(text: &str) -> bool {
    let is_word = |char: char| char.is_ascii_alphanumeric() || char == '_';
    text.starts_with(|char: char| char.is_ascii_alphabetic())
        && text.ends_with(is_word)
        && text.chars().all(|char| is_word(char) || char == ',' || char == ':')
        && text.len() <= 1_024
}

/// Writes to the status of objects in this namespace by the host since a mark.
async fn status_writes(world: &World, plan: Value) -> Result<Vec<String>> {
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    world.set_plan("w1", plan).await?;
    world
        .until("Widget", "w1", "has both conditions", |widget| {
            says(widget, "Ready", "False", "Told")?;
            says(widget, "Short", "True", "Told")
        })
        .await?;
    world.until_at_rest().await?;
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    Ok(writes.into_iter().filter(|write| write.contains("widgets/status")).collect())
}

/// B056.
#[tokio::test]
async fn long_message_is_cut_and_its_neighbour_stands() -> Result<()> {
    let world = World::new("limits-message").await?;
    let message = "ä".repeat(47_012 / 2);
    let conditions =
        json!([named("Ready", "False", "Told", &message), named("Short", "True", "Told", "short")]);
    let writes = status_writes(&world, json!({"conditions": conditions, "requeueAfterMs": 300})).await?;
    assert_eq!(writes, ["patch widgets/status w1 200"]);
    let widget = world.get("Widget", "w1").await?;
    let stored = string(condition(&widget, "Ready").unwrap(), "/message");
    assert!((32_000..=MAX_MESSAGE).contains(&stored.len()), "{} bytes", stored.len());
    let beginning = stored.strip_suffix(CUT_MARK).unwrap();
    assert!(beginning.chars().all(|char| char == 'ä'), "{beginning}");
    assert_eq!(string(condition(&widget, "Short").unwrap(), "/message"), "short");
    Ok(())
}

/// B056 with characters of every length, which the limit meets at every place.
#[tokio::test]
async fn message_is_cut_between_characters() -> Result<()> {
    let world = World::new("limits-cut").await?;
    let texts: Vec<_> =
        [("é", 0), ("é", 1), ("€", 0), ("€", 1), ("€", 2), ("😀", 0), ("😀", 1), ("😀", 2), ("😀", 3)]
            .into_iter()
            .map(|(char, before)| "x".repeat(before) + &char.repeat(MAX_MESSAGE / char.len() + 1))
            .collect();
    let long = texts.iter().enumerate().map(|(at, text)| named(&format!("Long{at}"), "True", "Told", text));
    let mut conditions: Vec<_> = long.collect();
    // What just fits is left as it is.
    let fits = "ä".repeat(MAX_MESSAGE / 2);
    conditions.push(named("Fits", "True", "Told", &fits));
    conditions.push(named("Ready", "False", "Told", ""));
    conditions.push(named("Short", "True", "Told", "short"));
    let writes = status_writes(&world, json!({"conditions": conditions, "requeueAfterMs": 300})).await?;
    assert_eq!(writes, ["patch widgets/status w1 200"]);
    let widget = world.get("Widget", "w1").await?;
    let stored = |r#type: &str| string(condition(&widget, r#type).unwrap(), "/message");
    for (at, text) in texts.iter().enumerate() {
        let stored = stored(&format!("Long{at}"));
        assert!((MAX_MESSAGE - 4..=MAX_MESSAGE).contains(&stored.len()), "{} bytes", stored.len());
        assert!(text.starts_with(stored.strip_suffix(CUT_MARK).unwrap()), "Long{at}");
    }
    assert_eq!(stored("Fits"), fits);
    Ok(())
}

/// B058.
#[tokio::test]
async fn odd_reason_is_made_one_word_and_its_neighbours_stand() -> Result<()> {
    let world = World::new("limits-reason").await?;
    let long = "Long".repeat(500);
    let reasons = [
        "Continuous Archiving is Working",
        "",
        "9lives",
        "Ends-With-",
        "Ends:",
        "-",
        "Größe",
        " ",
        "line\nbreak",
        "_private",
        "a/b.c",
        &*long,
    ];
    // The same twice: what is made of it is the same.
    let widgets: Vec<_> = reasons.iter().flat_map(|reason| [*reason; 2]).enumerate().collect();
    for (at, reason) in &widgets {
        let plan = json!({
            "status": {"note": reason}, "requeueAfterMs": 300,
            "conditions": [named("Odd", "True", reason, "the text"), named("Good", "True", "Told", "fine")],
        });
        world.set_plan(&format!("w{at}"), plan).await?;
    }
    let mut stored = Vec::new();
    for (at, reason) in &widgets {
        let name = format!("w{at}");
        let widget = world.until_says("Widget", &name, ["Good", "True", "Told"]).await?;
        assert_eq!(widget["status"]["note"], *reason);
        let odd = condition(&widget, "Odd").unwrap();
        let (made, message) = (string(odd, "/reason").to_owned(), string(odd, "/message").to_owned());
        assert!(is_reason(&made), "{reason:?} became {made:?}");
        // The original can be read somewhere.
        let beginning: String = format!("{reason:?}").trim_end_matches('"').chars().take(200).collect();
        assert!(message.contains("the text"), "{message}");
        assert!(
            reason.is_empty() || made == *reason || message.contains(&beginning),
            "{reason:?}: {message}"
        );
        stored.push((made, message));
    }
    for twins in stored.chunks(2) {
        assert_eq!(twins[0], twins[1]);
    }
    world.until_at_rest().await
}

/// B058 for a plan that changes from one odd reason to the next: nothing of the one before is left.
#[tokio::test]
async fn odd_reason_after_another_is_stored() -> Result<()> {
    let world = World::new("limits-reasons").await?;
    for (reason, made) in [
        ("Continuous Archiving is Working", "ContinuousArchivingIsWorking"),
        ("", "Unspecified"),
        ("9lives", "Reason9lives"),
        ("Ends-With-", "EndsWith"),
        ("Fine", "Fine"),
    ] {
        let plan = json!({
            "status": {"note": format!("note of {reason}")},
            "conditions": [named("Odd", "True", reason, ""), named("Good", "True", "Told", "fine")],
        });
        world.set_plan("w1", plan).await?;
        let widget = world.until_says("Widget", "w1", ["Odd", "True", made]).await?;
        says(&widget, "Good", "True", "Told")?;
        assert_eq!(string(&widget, "/status/note"), format!("note of {reason}"));
    }
    Ok(())
}

/// B056 and B058 for the events of a plan.
#[tokio::test]
async fn odd_and_long_events_are_told() -> Result<()> {
    let world = World::new("limits-events").await?;
    let events = json!([
        {"type": "Normal", "reason": "not one word", "note": "spaces"},
        {"type": "Normal", "reason": "", "note": "nothing"},
        {"type": "Normal", "reason": "9lives", "note": "digits"},
        {"type": "Warning", "reason": "Ends-With-", "note": "dash"},
        {"type": "Warning", "reason": "Long", "note": "ä".repeat(2_000)},
        {"type": "Warning", "reason": "Long".repeat(100), "note": "long word"},
        {"type": "Normal", "reason": "Silent", "note": ""},
    ]);
    world.set_plan("w1", json!({"events": events})).await?;
    for words in [
        ["Normal", "notOneWord", "spaces"],
        ["Normal", "Unspecified", "nothing"],
        ["Normal", "Reason9lives", "digits"],
        ["Warning", "EndsWith", "dash"],
        ["Warning", "Long", CUT_MARK],
        ["Warning", "LongLong", "long word"],
        ["Normal", "Silent", ""],
    ] {
        world.until_told("Widget", "w1", words).await?;
    }
    world.until_at_rest().await
}

/// How often events about a Widget with this reason were written, in how many objects.
async fn told(world: &World, name: &str, reason: &str) -> Result<(u64, usize)> {
    let events = world.list("Event", None).await?;
    let about: Vec<_> = events
        .iter()
        .filter(|event| event["regarding"]["name"] == name && event["reason"] == reason)
        .collect();
    let count = |event: &&Value| event["series"]["count"].as_u64().unwrap_or(1);
    Ok((about.iter().map(count).sum(), about.len()))
}

/// B059 a.
#[tokio::test]
async fn settled_objects_are_told_nothing_about() -> Result<()> {
    const WIDGETS: usize = 20;
    let world = World::new("limits-settled").await?;
    for n in 0..WIDGETS {
        let child = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("c{n}")}});
        world.set_plan(&format!("w{n}"), json!({"children": [child], "requeueAfterMs": 300})).await?;
    }
    for n in 0..WIDGETS {
        world.until_says("Widget", &format!("w{n}"), ["Ready", "True", "ChildrenReady"]).await?;
        world.until_told("Widget", &format!("w{n}"), ["Created", "c", ""]).await?;
    }
    world.until_at_rest().await?;
    for n in 0..WIDGETS {
        assert_eq!(told(&world, &format!("w{n}"), "Created").await?, (1, 1));
    }
    assert_eq!(world.list("Event", None).await?.len(), WIDGETS);
    Ok(())
}

/// B059 b: a guest that fails again and again, and an event of each pass, with another text each time.
#[tokio::test]
async fn events_whose_text_never_repeats_are_one_with_a_count_that_stops() -> Result<()> {
    const WRITES: u64 = 5;
    let world = World::new("limits-flood").await?;
    let mut audit = world.plane.audit().await?;
    let from = audit.mark().await?;
    world.set("Widget", "failing", json!({"mode": "transient-at"})).await?;
    world.set("Widget", "talking", json!({"mode": "events-at"})).await?;
    world.until_told("Widget", "failing", ["Warning", "Flaky", "told to fail"]).await?;
    world.until_told("Widget", "talking", ["Normal", "Told", "it is "]).await?;
    // Its allowance is used up, and a dozen passes later it still is.
    let used_up = eventually(DEADLINE, "as many events as may be", async || {
        let (count, objects) = told(&world, "talking", "Told").await?;
        ensure!(count >= WRITES, "{count} in {objects}");
        anyhow::Ok(())
    });
    used_up.await?;
    oarlock_tests::throughout(std::time::Duration::from_secs(4), "no more are written", async || {
        for (name, reason) in [("talking", "Told"), ("failing", "Flaky")] {
            let (count, objects) = told(&world, name, reason).await?;
            ensure!(count <= WRITES && objects <= 1, "{name}: {count} in {objects}");
        }
        anyhow::Ok(())
    })
    .await?;
    let to = audit.mark().await?;
    let writes = world.host_writes(&audit, from, to);
    let writes: Vec<_> = writes.iter().filter(|write| write.contains(" events ")).collect();
    // Two series, and the creation of one child.
    assert!(writes.len() as u64 <= 2 * WRITES + 1, "{writes:?}");
    Ok(())
}

/// A version that did not load for a limit is looked at again when that is raised, as it is with other permissions.
#[tokio::test]
async fn version_that_a_limit_refused_loads_when_the_limit_is_raised() -> Result<()> {
    let lab = Lab::enter("limits-raised").await?;
    let world = &lab.world;
    let host = lab.host().await?;
    world.source("widget", &[("plugin.wasm", &host::component("huge-memory")?)]).await?;
    let plugin = world
        .until("Plugin", "widget", "is refused", |plugin| says(plugin, "Ready", "False", "SmokeTestFailed"));
    let plugin = plugin.await?;
    let told = string(condition(&plugin, "Ready").unwrap(), "/message");
    assert!(told.contains("asked for 1073741824 bytes of memory, a call may have 67108864"), "{told}");
    world.merge("Plugin", "widget", json!({"spec": {"limits": {"memoryMebibytes": 1024}}})).await?;
    world.until_says("Plugin", "widget", ["Ready", "True", "Active"]).await?;
    world.delete_plugin("widget").await?;
    host.stop().await
}
