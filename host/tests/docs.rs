//! The pages say what the code says.

use oarlock::{config::Limits, report::Reason};
use std::{fmt::Write as _, fs, process::Command};

fn read(path: &str) -> String {
    let path = format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What a command prints about itself.
fn help(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_oarlock")).args(args).arg("--help").output();
    let output = output.expect("the command runs");
    String::from_utf8(output.stdout).expect("help is text")
}

/// The first cells of the rows of all tables whose header begins with `header`.
fn first_cells(page: &str, header: &str) -> Vec<String> {
    let mut cells = Vec::new();
    let mut is_inside = false;
    for line in page.lines() {
        let cell = line.strip_prefix("| ").and_then(|line| line.split(" |").next());
        match cell {
            Some(cell) if cell == header => is_inside = true,
            Some(cell) if is_inside && cell != "---" => cells.push(cell.trim_matches('`').to_owned()),
            Some(_) => {}
            None => is_inside = false,
        }
    }
    cells
}

#[test]
fn every_reason_has_its_row_in_the_page_of_conditions() {
    let reasons: Vec<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    let rows = first_cells(&read("docs/conditions.md"), "reason");
    assert_eq!(
        rows, reasons,
        "docs/conditions.md has one row for each reason of host/src/report.rs, in its order"
    );
}

#[test]
fn every_answer_of_the_api_server_has_its_row_in_the_page_of_conditions() {
    let source = read("host/src/observe/client/answer.rs");
    let names = source.split("fn as_str").nth(1).and_then(|rest| rest.split("fn ").next()).unwrap();
    let names: Vec<_> = names.split("=> \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(
        first_cells(&read("docs/conditions.md"), "answer"),
        names,
        "docs/conditions.md has one row for each answer of host/src/observe/client/answer.rs, in its order"
    );
}

#[test]
fn every_limit_stands_with_its_number_in_the_reference() {
    let Limits {
        component_bytes,
        functions,
        function_bytes,
        modules,
        nesting,
        names,
        memory_bytes,
        fuel,
        deadline,
        output_bytes,
        children,
        conditions,
        events,
        log_bytes,
        log_lines,
        reads,
        read_bytes,
        unsettled_plans,
        compile_time,
        compile_memory_bytes,
    } = Limits::STANDARD;
    let binary = |bytes: u64| match bytes.trailing_zeros() {
        30.. => format!("{} GiB", bytes >> 30),
        20.. => format!("{} MiB", bytes >> 20),
        _ => format!("{} KiB", bytes >> 10),
    };
    let expected = [
        ("component", binary(component_bytes as u64)),
        ("functions of a component", thousands(functions)),
        ("code of one function", binary(function_bytes as u64)),
        ("modules of a component", modules.to_string()),
        ("nesting of a component", nesting.to_string()),
        ("imports and exports of a component", thousands(names)),
        ("memory of a call", binary(memory_bytes as u64)),
        ("fuel of a call", format!("{} G", fuel / 1_000_000_000)),
        ("wall time of a call", format!("{} s", deadline.as_secs())),
        ("answer", binary(output_bytes as u64)),
        ("children of a plan", thousands(children)),
        ("conditions of a plan", thousands(conditions)),
        ("events of a plan", thousands(events)),
        ("log text of a call", binary(log_bytes as u64)),
        ("log lines of a call", thousands(log_lines)),
        ("reads of a call", thousands(reads)),
        ("text read by a call", binary(read_bytes as u64)),
        ("plans that do not settle", unsettled_plans.to_string()),
        ("compile time", format!("{} s", compile_time.as_secs())),
        ("compile memory", binary(compile_memory_bytes)),
    ];
    let page = read("docs/plugin-reference.md");
    let mut missing = String::new();
    for (limit, number) in expected {
        let row = format!("| {limit} | {number} |");
        if !page.contains(&row) {
            writeln!(missing, "{row}").unwrap();
        }
    }
    assert!(missing.is_empty(), "docs/plugin-reference.md lacks the rows:\n{missing}");
}

fn thousands(number: usize) -> String {
    if number < 1_000 { number.to_string() } else { format!("{},{:03}", number / 1_000, number % 1_000) }
}

#[test]
fn plugin_in_the_readme_is_the_one_that_the_sdk_tests() {
    let sdk = read("guest-sdk/src/lib.rs");
    let sdk: Vec<_> = sdk.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim_start).collect();
    let readme = read("README.md");
    let readme: Vec<_> = readme.lines().map(str::trim_start).collect();
    let block = |lines: &[&str], fence: &str| -> Vec<String> {
        let start = lines.iter().position(|line| *line == fence).unwrap() + 1;
        lines[start..].iter().take_while(|line| **line != "```").map(|line| (*line).to_owned()).collect()
    };
    assert_eq!(
        block(&readme, "```rust"),
        block(&sdk, "```"),
        "README.md shows the example of guest-sdk/src/lib.rs"
    );
}

#[test]
fn every_metric_has_its_row_in_the_page_of_operations() {
    // A family without a sample is not rendered, so the names are read where they are registered.
    let source = read("host/src/operate/metrics.rs");
    let names =
        source.split("register(").filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
    let rows = first_cells(&read("docs/operations.md"), "metric");
    let rows = rows.iter().map(|row| row.trim_start_matches("oarlock_"));
    let rows = rows.map(|row| row.trim_end_matches("_total").trim_end_matches("_info"));
    let names = names.map(|name| name.trim_end_matches("_info"));
    assert_eq!(
        rows.into_iter().collect::<Vec<_>>(),
        names.into_iter().collect::<Vec<_>>(),
        "docs/operations.md has one row for each metric, in order"
    );
}

#[test]
fn every_flag_of_run_stands_in_the_page_of_operations() {
    let rows = first_cells(&read("docs/operations.md"), "flag").join(" ");
    let help = help(&["run"]);
    let flags = help.split_whitespace().filter(|word| word.starts_with("--") && *word != "--help");
    let missing: Vec<_> = flags.filter(|flag| !rows.contains(flag.trim_end_matches(','))).collect();
    assert!(missing.is_empty() && help.contains("--admin"), "docs/operations.md lacks {missing:?}");
}

#[test]
fn every_command_in_the_pages_is_one_of_ours() {
    let help = help(&[]);
    let pages = [
        "README.md",
        "docs/concepts.md",
        "docs/conditions.md",
        "docs/operations.md",
        "docs/plugin-reference.md",
        "docs/security.md",
        "docs/tutorial.md",
    ];
    for page in pages {
        let text = read(page);
        // `oarlock push …` in code; prose about Oarlock has a capital.
        let commands =
            text.split("oarlock ").skip(1).map(|rest| rest.split([' ', '`', '\n']).next().unwrap());
        for command in
            commands.filter(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase()))
        {
            assert!(help.contains(&format!("\n  {command} ")), "{page} speaks of `oarlock {command}`");
        }
    }
}
