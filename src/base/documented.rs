//! Reads the example bytes of the pages in `docs/format`.

/// The bytes of the `nth` hex block of a page. Text after a `#` is a comment.
///
/// # Panics
/// If the page has no such block, or the block has something other than pairs of hex digits.
pub(crate) fn hex_block(page: &str, nth: usize) -> Vec<u8> {
    let block = page.split("```hex\n").nth(nth + 1).and_then(|rest| rest.split("```").next());
    let lines = block.expect("the page has the block").lines();
    let code = lines.map(|line| line.split('#').next().unwrap_or_default());
    let digits: Vec<char> =
        code.flat_map(str::chars).filter(|digit| !digit.is_whitespace()).collect();
    let value = |digit: char| digit.to_digit(16).expect("a hex digit") as u8;
    assert!(digits.len().is_multiple_of(2), "two digits a byte");
    digits.chunks(2).map(|pair| value(pair[0]) << 4 | value(pair[1])).collect()
}
