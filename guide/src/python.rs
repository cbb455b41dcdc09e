//! Values as Python prints them: str(), repr() and json.dumps(). Chat templates were written against it.
//!
//! A value can hold the same list twice, and that list another one twice: forty levels of it print to
//! more text than there is memory. So a writer has a bound on bytes and on depth.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Deeper values are an error. Messages from a request have at most 128 levels.
const DEPTH_MAX: usize = 256;

/// What chat.c puts in place of control tokens: escaped, they would not be found again.
const PLACEHOLDERS: std::ops::RangeInclusive<char> = '\u{100000}'..='\u{10fffd}';

/// What visiting one value costs, in bytes of text.
const VISIT_BYTES: usize = 16;

pub struct Writer {
    pub text: String,
    /// Bytes written and values visited.
    pub spent: usize,
    bytes_max: usize,
}

impl Writer {
    pub fn new(bytes_max: usize) -> Writer {
        Writer { text: String::new(), spent: 0, bytes_max }
    }

    fn spend(&mut self, n: usize) -> Result<(), Error> {
        self.spent += n;
        if self.spent > self.bytes_max {
            return Err(Error::new(
                ErrorKind::WriteFailure,
                format!("a value of over {} bytes", self.bytes_max),
            ));
        }
        Ok(())
    }

    fn put(&mut self, s: &str) -> Result<(), Error> {
        self.spend(s.len())?;
        self.text.push_str(s);
        Ok(())
    }

    fn visit(&mut self, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(Error::new(ErrorKind::WriteFailure, format!("a value of over {DEPTH_MAX} levels")));
        }
        self.spend(VISIT_BYTES)
    }

    /// str(v) of Python.
    pub fn str(&mut self, v: &Value) -> Result<(), Error> {
        match v.as_str() {
            Some(s) => self.put(s),
            None => self.repr(v, 0),
        }
    }

    fn repr(&mut self, v: &Value, depth: usize) -> Result<(), Error> {
        self.visit(depth)?;
        match v.kind() {
            ValueKind::Number if !v.is_integer() => self.put(&float(f64::try_from(v.clone())?)),
            ValueKind::String => self.put(&quoted(v.as_str().unwrap_or(""))),
            ValueKind::Map => {
                self.put("{")?;
                for (i, key) in v.try_iter()?.enumerate() {
                    self.put(if i > 0 { ", " } else { "" })?;
                    self.repr(&key, depth + 1)?;
                    self.put(": ")?;
                    self.repr(&v.get_item(&key)?, depth + 1)?;
                }
                self.put("}")
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let tuple = v.is_tuple();
                self.put(if tuple { "(" } else { "[" })?;
                let mut n = 0;
                for item in v.try_iter()? {
                    self.put(if n > 0 { ", " } else { "" })?;
                    self.repr(&item, depth + 1)?;
                    n += 1;
                }
                self.put(if tuple && n == 1 {
                    ",)"
                } else if tuple {
                    ")"
                } else {
                    "]"
                })
            }
            // Undefined prints as nothing, None, True and integers as Python has them.
            _ => self.put(&v.to_string()),
        }
    }

    /// json.dumps(v) of Python.
    pub fn json(&mut self, v: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
        self.visit(depth)?;
        match v.kind() {
            ValueKind::None => self.put("null"),
            ValueKind::Bool => self.put(if v.is_true() { "true" } else { "false" }),
            ValueKind::String => self.put(&json_string(v.as_str().unwrap_or(""), style.ascii)),
            ValueKind::Number => self.put(&json_number(v)?),
            ValueKind::Map => {
                let mut keys =
                    v.try_iter()?.map(|k| Ok((json_key(&k)?, k))).collect::<Result<Vec<_>, Error>>()?;
                if style.sort_keys {
                    keys.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.put("{")?;
                let n = keys.len();
                for (i, (name, key)) in keys.into_iter().enumerate() {
                    self.put(if i > 0 { &style.item_separator } else { "" })?;
                    self.json_line(style, depth + 1)?;
                    self.put(&json_string(&name, style.ascii))?;
                    self.put(&style.key_separator)?;
                    self.json(&v.get_item(&key)?, style, depth + 1)?;
                }
                if n > 0 {
                    self.json_line(style, depth)?;
                }
                self.put("}")
            }
            ValueKind::Seq | ValueKind::Iterable => {
                self.put("[")?;
                let mut n = 0;
                for item in v.try_iter()? {
                    self.put(if n > 0 { &style.item_separator } else { "" })?;
                    self.json_line(style, depth + 1)?;
                    self.json(&item, style, depth + 1)?;
                    n += 1;
                }
                if n > 0 {
                    self.json_line(style, depth)?;
                }
                self.put("]")
            }
            kind => {
                let what = format!("Object of type {kind} is not JSON serializable");
                Err(Error::new(ErrorKind::BadSerialization, what))
            }
        }
    }

    fn json_line(&mut self, style: &JsonStyle, depth: usize) -> Result<(), Error> {
        if let Some(indent) = &style.indent {
            self.put("\n")?;
            for _ in 0..depth {
                self.put(indent)?;
            }
        }
        Ok(())
    }
}

pub struct JsonStyle {
    pub ascii: bool,
    pub sort_keys: bool,
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
}

/// repr(float): the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
pub fn float(f: f64) -> String {
    if f.is_nan() {
        return "nan".into();
    }
    if f.is_infinite() {
        return if f > 0.0 { "inf" } else { "-inf" }.into();
    }
    let size = f.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let digits = format!("{f:e}");
        let (mantissa, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let mut text = format!("{f}");
    if !text.contains('.') {
        text.push_str(".0");
    }
    text
}

fn json_number(v: &Value) -> Result<String, Error> {
    if v.is_integer() {
        return Ok(v.to_string());
    }
    Ok(match f64::try_from(v.clone())? {
        f if f.is_nan() => "NaN".into(),
        f if f.is_infinite() => if f > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        f => float(f),
    })
}

fn json_key(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or("").into()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number => json_number(key),
        kind => Err(Error::new(ErrorKind::BadSerialization, format!("keys must be str, not {kind}"))),
    }
}

fn json_string(s: &str, ascii: bool) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (ascii && c as u32 > 0x7e && !PLACEHOLDERS.contains(&c)) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Rust and Python mean the same by it. Behind a letter, so that combining marks are not escaped.
fn printable(c: char) -> bool {
    match c.is_ascii() {
        true => !c.is_ascii_control(),
        false => ['a', c].iter().collect::<String>().escape_debug().nth(2).is_none(),
    }
}

/// str.title(): a letter after a character without case is upper, the others are lower.
pub fn title(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut inside = false;
    for c in s.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_lowercase() || c.is_uppercase();
    }
    out
}

/// repr(str): single quotes unless the text holds them and no double ones.
fn quoted(s: &str) -> String {
    let quote = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(s.len() + 2);
    out.push(quote);
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if printable(c) || PLACEHOLDERS.contains(&c) => out.push(c),
            c => {
                let _ = match c as u32 {
                    n @ 0..=0xff => write!(out, "\\x{n:02x}"),
                    n @ 0x100..=0xffff => write!(out, "\\u{n:04x}"),
                    n => write!(out, "\\U{n:08x}"),
                };
            }
        }
    }
    out.push(quote);
    out
}
