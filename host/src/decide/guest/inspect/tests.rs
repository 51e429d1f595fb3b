use super::*;

fn check(bytes: &[u8], expected: &str) {
    let error = inspect(bytes, &Limits::STANDARD).expect_err("such a file is refused");
    assert!(error.to_string().contains(expected), "{error}");
}

const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";
const MODULE: &[u8] = b"\0asm\x01\0\0\0";

/// A section with its length, for files up to 16 KiB.
fn section(id: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).expect("short enough");
    let mut section = vec![id, (length & 0x7f) as u8 | 0x80, (length >> 7) as u8];
    section.extend_from_slice(content);
    section
}

#[test]
fn inspect_says_what_a_file_is_when_it_is_no_component() {
    let cut = [COMPONENT, &section(1, MODULE)[..6]].concat();
    let cut_inside = [COMPONENT, &[0, 200, 1, 4][..], b"name"].concat();
    let cases: &[(&[u8], &str)] = &[
        (b"", "is empty"),
        (b"hello", r#"is text, not WebAssembly; it starts with "hello""#),
        (b"(component)", "build the binary one"),
        (b"AGFzbQ0AAQA=", "this is base64"),
        ("gr\u{fc}n, wie gr\u{fc}n".as_bytes(), "is text"),
        (b"\x1f\x8b\x08\0", "name it .wasm.gz"),
        (b"\x28\xb5\x2f\xfd\0", "name it .wasm.zst"),
        (b"\x7fELF\x02\x01\x01", "for this machine"),
        (b"\xff\xfe\0\x01", "starts with the bytes ff fe 00 01"),
        (b"\0as", "cut off after 3 bytes"),
        (b"\0asm\x0d", "cut off after 5 bytes"),
        (b"\0asm\x63\0\x01\0", "its version is unknown"),
        (MODULE, "`oarlock build` or `cargo component build --release`"),
        (&cut, "cut off after"),
        (&cut_inside, "cut off after"),
        (COMPONENT, "does not export describe, reconcile, finalize; a plugin exports"),
        (&[COMPONENT, &section(40, b"")].concat(), "malformed"),
    ];
    for (bytes, expected) in cases {
        check(bytes, expected);
    }
}

#[test]
fn inspect_refuses_too_many_bytes() {
    let limits = Limits { component_bytes: 7, ..Limits::STANDARD };
    let error = inspect(COMPONENT, &limits).expect_err("it has 8 bytes");
    assert!(error.to_string().contains("has 8 bytes, at most 7 are allowed"), "{error}");
}

#[test]
fn inspect_refuses_deep_nesting_without_following_it() {
    let mut nested = COMPONENT.to_vec();
    for _ in 0..=Limits::STANDARD.nesting {
        nested = [COMPONENT, &section(4, &nested)].concat();
    }
    check(&nested, "9 levels of nesting, at most 8");
}

#[test]
fn inspect_refuses_too_many_modules() {
    let many = [COMPONENT.to_vec(), section(1, MODULE).repeat(Limits::STANDARD.modules + 1)].concat();
    check(&many, "65 modules, at most 64");
}
