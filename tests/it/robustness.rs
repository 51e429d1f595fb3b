//! The page of faults names tests that exist.

use std::fs;

use crate::world::REPOSITORY;

/// The cells of the rows about faults.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let rows = page.lines().filter(|line| line.starts_with("| F"));
    rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(format!("{REPOSITORY}/{path}")).unwrap_or_default()
}

#[test]
fn every_fault_has_its_row_in_order() {
    let page = read("docs/robustness.md");
    let ids: Vec<_> = rows(&page).iter().map(|row| row[0].to_owned()).collect();
    let wanted: Vec<_> = (1..=46).chain(60..=79).map(|number| format!("F{number:02}")).collect();
    assert_eq!(ids, wanted);
}

#[test]
fn every_fault_is_kept_by_tests_that_exist_or_said_not_to_be() {
    let page = read("docs/robustness.md");
    let mut wrong = Vec::new();
    for row in rows(&page) {
        let [id, _, _, kept_by] = row[..] else { panic!("{row:?} has not four cells") };
        if ["simulator", "not built", "not tested"].contains(&kept_by) {
            continue;
        }
        for test in kept_by.split("`, `").map(|test| test.trim_matches('`')) {
            let Some((path, name)) = test.split_once(": ") else {
                wrong.push(format!("{id}: {test:?} is no test"));
                continue;
            };
            let source = read(path);
            let before = source.split_once(&format!("fn {name}(")).map(|(before, _)| before.lines().rev());
            // Other attributes may come between.
            let is_test = |line: &str| line.trim_start().starts_with("#[") && line.contains("test");
            if !before.is_some_and(|lines| lines.take(4).any(is_test)) {
                wrong.push(format!("{id}: there is no test {name} in {path}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
