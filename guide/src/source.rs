//! The text of a template before the engine parses it: line ends as Jinja2 has them, the
//! `{% generation %}` block of transformers, and the bounds that the engine itself does not have.

use crate::template::Failure;

pub const SOURCE_BYTES_MAX: usize = 1 << 20;
/// Longest `{{ }}` or `{% %}`. The engine's depth of recursion over `a.b.b.b...` follows it.
const TAG_BYTES_MAX: usize = 64 << 10;
/// The engine parses one level deeper for each of them.
const ELIF_MAX: usize = 4096;

/// Jinja2 reads "\r\n" and "\r" as "\n" everywhere and drops one line end at the end of the source.
fn lines_as_jinja(source: &str) -> String {
    let mut text = source.replace("\r\n", "\n").replace('\r', "\n");
    if text.ends_with('\n') {
        text.pop();
    }
    text
}

/// Where the tag that starts at `from` ends: past its closing mark, strings respected.
fn tag_end(text: &[u8], from: usize, close: &[u8]) -> Option<usize> {
    let mut quote = 0u8;
    let mut at = from;
    while at < text.len() {
        let c = text[at];
        if quote != 0 {
            match c {
                b'\\' => at += 1,
                _ if c == quote => quote = 0,
                _ => {}
            }
        } else if c == b'"' || c == b'\'' {
            quote = c;
        } else if text[at..].starts_with(close) {
            return Some(at + close.len());
        }
        at += 1;
    }
    None
}

fn find(text: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    text[from..].windows(what.len()).position(|w| w == what).map(|i| from + i)
}

/// The words of a block tag without its marks: `{%- if x %}` gives `if x`.
fn inside(tag: &str) -> &str {
    tag[2..tag.len() - 2].trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim()
}

pub fn prepare(source: &[u8]) -> Result<String, Failure> {
    if source.len() > SOURCE_BYTES_MAX {
        let n = source.len();
        return Err(Failure::limit(format!("template of {n} bytes, limit {SOURCE_BYTES_MAX}")));
    }
    let source = std::str::from_utf8(source)
        .map_err(|e| Failure::syntax(format!("template is not UTF-8 at byte {}", e.valid_up_to())))?;
    let text = lines_as_jinja(source);
    let mut out = String::with_capacity(text.len());
    let mut n_elif = 0;
    let mut at = 0;
    while let Some(open) = find(text.as_bytes(), at, b"{") {
        out.push_str(&text[at..open]);
        let rest = &text.as_bytes()[open..];
        // An unclosed tag goes to the engine as it is: it knows how to complain.
        let end = match rest.get(1) {
            Some(b'#') => find(text.as_bytes(), open, b"#}").map(|i| i + 2),
            Some(b'{') => tag_end(text.as_bytes(), open + 2, b"}}"),
            Some(b'%') => tag_end(text.as_bytes(), open + 2, b"%}"),
            _ => Some(open + 1),
        };
        let end = end.unwrap_or(text.len());
        let tag = &text[open..end];
        if !tag.starts_with("{#") && tag.len() > TAG_BYTES_MAX {
            let line = text[..open].matches('\n').count() + 1;
            let n = tag.len();
            return Err(Failure::limit(format!("line {line}: a tag of {n} bytes, limit {TAG_BYTES_MAX}")));
        }
        at = end;
        if !tag.starts_with("{%") || tag.len() < 4 {
            out.push_str(tag);
            continue;
        }
        match inside(tag) {
            // A scope that renders its body: that is what `with` without assignments is.
            "generation" => out.push_str(&tag.replace("generation", "with")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endwith")),
            "raw" => {
                // Up to the tag that ends it, unread.
                let mut seek = at;
                while let Some(mark) = find(text.as_bytes(), seek, b"{%") {
                    seek = mark + 2;
                    let close = find(text.as_bytes(), mark, b"%}").map_or(text.len(), |i| i + 2);
                    if close - mark >= 4 && inside(&text[mark..close]) == "endraw" {
                        at = close;
                        break;
                    }
                }
                out.push_str(&text[open..at]);
            }
            words => {
                n_elif += usize::from(words.starts_with("elif"));
                if n_elif > ELIF_MAX {
                    return Err(Failure::limit(format!("more than {ELIF_MAX} elif tags")));
                }
                out.push_str(tag);
            }
        }
    }
    out.push_str(&text[at..]);
    Ok(out)
}
