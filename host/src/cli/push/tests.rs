use super::{
    upload::{Entry, PLAIN_BYTES, stale_entries},
    *,
};
use crate::object::LABEL_PLUGIN;
use k8s_openapi::{ByteString, api::core::v1::ConfigMap};
use serde_json::json;

fn component(size: usize, is_random: bool) -> Vec<u8> {
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if is_random { (state >> 56) as u8 } else { 7 }
    });
    b"\0asm".iter().copied().chain(noise).take(size).collect()
}

#[test]
fn component_is_compressed_when_it_is_large_and_in_parts_when_it_is_larger() {
    for (component, key, config_maps) in [
        (component(PLAIN_BYTES, true), "website.wasm", 1),
        (component(PLAIN_BYTES + 1, false), "website.wasm.zst", 1),
        (component(2_000_000, true), "parts.json", 4),
    ] {
        let upload = Upload::pack("website", &component).unwrap();
        assert_eq!((&*upload.entry.key, upload.len()), (key, config_maps));
    }
    let error = Upload::pack("website", &component((16 << 20) + 1, false)).unwrap_err();
    assert_eq!(error.to_string(), "the component has 16777217 bytes, and a host takes 16777216");
    let error = Upload::pack("website", b"#!/bin/sh").unwrap_err();
    assert_eq!(error.to_string(), "the file is no WebAssembly");
}

#[test]
fn name_is_that_of_the_file_or_folder() {
    let folder = tempfile::tempdir().unwrap();
    for (file, expected) in [("my_site.wasm", "my-site"), ("Site.wasm", "site"), ("crate_dir", "crate-dir")] {
        fs::write(folder.path().join(file), "").unwrap();
        assert_eq!(default_name(&folder.path().join(file)).unwrap(), expected);
    }
    default_name(Path::new("/nonexistent")).unwrap_err();
    for (name, is_good) in [
        ("a", true),
        ("my-site-2", true),
        ("", false),
        ("-a", false),
        ("a-", false),
        ("a.b", false),
        ("A", false),
    ] {
        assert_eq!(check_name(name).is_ok(), is_good, "{name:?}");
    }
    assert!(check_name(&"a".repeat(63)).is_ok() && check_name(&"a".repeat(64)).is_err());
}

#[test]
fn duration_is_read_as_people_write_it() {
    for (text, expected) in
        [("60s", Ok(60)), ("2m", Ok(120)), ("1m30s", Ok(90)), ("60", Err(())), ("-1s", Err(()))]
    {
        assert_eq!(parse_duration(text).map(|duration| duration.as_secs()).map_err(drop), expected, "{text}");
    }
}

#[test]
fn components_under_another_name_are_found_and_other_config_maps_left_alone() {
    let with = |label: &str, data: &[&str], binary: &[&str]| ConfigMap {
        metadata: kube::core::ObjectMeta {
            labels: Some([(LABEL_PLUGIN.to_owned(), label.to_owned())].into()),
            ..Default::default()
        },
        data: Some(data.iter().map(|key| ((*key).to_owned(), String::new())).collect()),
        binary_data: Some(binary.iter().map(|key| ((*key).to_owned(), ByteString(vec![]))).collect()),
        ..ConfigMap::default()
    };
    for (data, binary, expected) in [
        (&[][..], &["website.wasm"][..], vec![]),
        (&["README"], &["website.wasm"], vec![]),
        (&[], &["website.wasm.zst"], vec![("binaryData", "website.wasm.zst")]),
        (&["old.wasm.gz"], &["website.wasm"], vec![("data", "old.wasm.gz")]),
        (&["website.wasm"], &[], vec![("data", "website.wasm")]),
        (&["parts.json"], &[], vec![("data", "parts.json")]),
    ] {
        let live = with("true", data, binary);
        assert_eq!(
            stale_entries(&live, "ns", "website", &Entry::named("website.wasm")).unwrap(),
            expected,
            "{data:?} {binary:?}"
        );
    }
    let foreign = with("false", &[], &[]);
    let error = stale_entries(&foreign, "ns", "website", &Entry::named("website.wasm")).unwrap_err();
    assert_eq!(error.to_string(), "ConfigMap ns/website exists already and is no plugin");
}

fn plugin(active: &str, ready: &str, refused: &str) -> Value {
    json!({"status": {
        "active": {"digest": active, "version": "1.0", "parent": "Website (demo.example.com/v1)"},
        "refused": {"digest": refused, "reason": "NotWasm", "message": "why"},
        "conditions": [{"type": "Ready", "status": ready, "reason": "Syncing", "message": "waits for kinds"}],
    }})
}

#[test]
fn verdict_is_about_the_digest_that_was_pushed() {
    let is_ready = Verdict::Ready { version: "1.0".into(), parent: "Website (demo.example.com/v1)".into() };
    let refused = Verdict::Refused { reason: "NotWasm".into(), message: "why".into() };
    for (active, ready, refused_digest, expected) in [
        ("new", "True", "", Some(is_ready)),
        ("new", "False", "", None),
        ("old", "True", "", None),
        ("old", "True", "older", None),
        ("old", "True", "new", Some(refused)),
    ] {
        assert_eq!(
            said(&plugin(active, ready, refused_digest), "new"),
            expected,
            "{active} {ready} {refused_digest}"
        );
    }
    assert_eq!(said(&json!({}), "new"), None);
    let (new, old) = ("0123456789abcdef", "old");
    let mut back = plugin(old, "True", "");
    back["metadata"] = json!({"name": "site"});
    back["spec"] = json!({"rollback": {"from": new, "to": old}});
    let Some(Verdict::Refused { message, .. }) = said(&back, new) else { panic!("{back}") };
    assert!(message.contains("oarlock rollback site --to 0123456789ab"), "{message}");
    let mut pinned = plugin(old, "True", "");
    pinned["status"]["sourceDigest"] = new.into();
    pinned["status"]["conditions"] =
        json!([{"type": "Loaded", "reason": "DigestMismatch", "message": "pinned"}]);
    let expected = Verdict::Refused { reason: "DigestMismatch".to_owned(), message: "pinned".to_owned() };
    assert_eq!(said(&pinned, new), Some(expected));
    for (rollout, expected) in [("Preview", "waits for approval: 2 change"), ("Canary", "a canary: 2 change")]
    {
        let mut waits = plugin("old", "True", "");
        waits["status"]["candidate"] = json!({"digest": "new", "rollout": rollout, "message": "2 change"});
        assert_eq!(said(&waits, "new"), Some(Verdict::Waits { message: expected.to_owned() }));
    }
}

#[test]
fn overdue_says_what_was_waited_for() {
    let digest = "0123456789abcdef";
    let minute = Duration::from_mins(1);
    for (plugin, what, help) in [
        (
            None,
            "there is no Plugin website after 60s: no host has seen the ConfigMap",
            "kubectl -n ns get pods",
        ),
        (
            Some(plugin("old", "True", "")),
            "the host has not taken sha256 0123456789ab after 60s",
            "may not be running",
        ),
        (
            Some(plugin(digest, "False", "")),
            "website is in force and not Ready after 60s: Syncing: waits for kinds",
            "oarlock get plugins website -w",
        ),
    ] {
        let failure = overdue(plugin.as_ref(), "ns", "website", digest, minute);
        assert_eq!(failure.what, what);
        assert!(failure.help.contains(help), "{}", failure.help);
    }
}
