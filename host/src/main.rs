//! The `oarlock` command; see [`oarlock::cli`].

fn main() -> std::process::ExitCode {
    oarlock::cli::main()
}
