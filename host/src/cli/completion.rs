//! `oarlock completion`: a script that completes commands.

use clap_complete::Shell;
use std::{
    io::{self, Write as _},
    process::ExitCode,
};

/// Prints a script that completes commands in a shell.
#[derive(clap::Args, Debug)]
#[command(after_help = "For bash: source <(oarlock completion bash)")]
pub struct Args {
    /// The shell
    shell: Choice,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Choice {
    Bash,
    Zsh,
    Fish,
}

/// Prints the script.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    io::stdout().write_all(&script(args.shell))?;
    Ok(ExitCode::SUCCESS)
}

fn script(shell: Choice) -> Vec<u8> {
    let shell = match shell {
        Choice::Bash => Shell::Bash,
        Choice::Zsh => Shell::Zsh,
        Choice::Fish => Shell::Fish,
    };
    // Into memory first: a reader that has enough is no reason for a panic.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut super::command(None), "oarlock", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_knows_the_commands_that_are_for_people() {
        for shell in [Choice::Bash, Choice::Zsh, Choice::Fish] {
            let script = String::from_utf8(script(shell)).unwrap();
            assert!(script.contains("push") && script.contains("no-check"), "{shell:?}");
        }
    }
}
