//! Chat templates: minijinja set up to answer as the Jinja2 environment of transformers does.
//!
//! Bounds: source 1 MiB, output 16 MiB, one million units of fuel a render. The engine charges fuel for
//! each instruction and for the bytes and items it makes; one unit pays for 64 bytes, so a render also
//! cannot hold more than about 64 MB of text.

use std::collections::BTreeMap;
use std::ffi::{c_char, CString};
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};
use std::sync::Arc;
use std::{fmt, io};

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior};

use crate::python::{self, JsonStyle, Writer};
use crate::{guard, source};

const NAME: &str = "chat_template";
const OUTPUT_BYTES_MAX: usize = 16 << 20;
const FUEL: u64 = 1_000_000;
/// What one unit of fuel pays for in tojson and string, which walk values.
const WALKED_BYTES_PER_FUEL: usize = 16;
/// A template that lost so much memory is not run again: it was stopped twice, or leaks by and by.
const LOST_BYTES_MAX: isize = 2 * guard::MEMORY_MAX;
const STRFTIME_BYTES_MAX: usize = 1024;

/// Codes of src/text/guide.h.
#[derive(Clone, Copy)]
pub enum Code {
    Syntax = 1,
    Raised = 2,
    Failed = 3,
    Limit = 4,
    Memory = 5,
}

pub struct Failure {
    pub code: Code,
    pub message: String,
}

impl Failure {
    pub fn syntax(message: impl Into<String>) -> Failure {
        Failure { code: Code::Syntax, message: message.into() }
    }
    pub fn failed(message: impl Into<String>) -> Failure {
        Failure { code: Code::Failed, message: message.into() }
    }
    pub fn memory(message: impl Into<String>) -> Failure {
        Failure { code: Code::Memory, message: message.into() }
    }
    pub fn limit(message: impl Into<String>) -> Failure {
        Failure { code: Code::Limit, message: message.into() }
    }

    /// From an error of the engine: what it says, without the names of the engine's own parts.
    fn of(error: &Error) -> Failure {
        let mut at: Option<&(dyn std::error::Error + 'static)> = Some(error);
        let mut code = Code::Failed;
        while let Some(e) = at {
            if let Some(raised) = e.downcast_ref::<Raised>() {
                return Failure { code: Code::Raised, message: raised.0.clone() };
            }
            match e.downcast_ref::<Error>().map(Error::kind) {
                Some(ErrorKind::OutOfFuel | ErrorKind::WriteFailure) => code = Code::Limit,
                Some(ErrorKind::SyntaxError) => code = Code::Syntax,
                _ => {}
            }
            at = e.source();
        }
        Failure { code, message: error.to_string() }
    }
}

/// What raise_exception was called with.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

pub struct Template {
    env: Environment<'static>,
    /// Bytes that renders did not give back: threads that were stopped, values that hold themselves.
    lost: AtomicIsize,
}

impl From<guard::Failure> for Failure {
    fn from(f: guard::Failure) -> Failure {
        match f {
            guard::Failure::Panic => Failure::failed("the template engine panicked"),
            guard::Failure::NoThread(e) => Failure::memory(format!("no thread for the template: {e}")),
            guard::Failure::RanAway => Failure::limit("it takes too much time or memory"),
            guard::Failure::NoMemory => Failure::memory("no memory"),
        }
    }
}

impl Template {
    pub fn compile(source: &[u8]) -> Result<Template, Failure> {
        let source = guard::Borrowed::new(source);
        guard::run(move || unsafe { source.bytes() }.to_vec(), |source| Template::compile_here(&source)).0?
    }

    fn compile_here(source: &[u8]) -> Result<Template, Failure> {
        let source = source::prepare(source)?;
        let mut env = Environment::new();
        let syntax = minijinja::syntax::SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .keep_trailing_newline(true) // source::prepare has dropped the one that Jinja2 drops
            .build();
        env.set_syntax(syntax.map_err(|e| Failure::of(&e))?);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_unknown_method_callback(|state, v, method, args| match (v.as_str(), method) {
            (Some(s), "title") if args.is_empty() => Ok(Value::from(python::title(s))),
            _ => minijinja_contrib::pycompat::unknown_method_callback(state, v, method, args),
        });
        env.set_fuel(Some(FUEL));
        env.set_formatter(|out, state, v| {
            if let Some(s) = v.as_str() {
                return out.write_str(s).map_err(Error::from);
            }
            out.write_str(&python_str(state, v)?).map_err(Error::from)
        });
        env.add_filter("tojson", tojson);
        env.add_filter("string", |state: &State, v: &Value| -> Result<Value, Error> {
            if v.as_str().is_some() {
                return Ok(v.clone());
            }
            Ok(Value::from(python_str(state, v)?))
        });
        env.add_filter("int", |v: &Value, default: Option<Value>| {
            as_int(v).map_or_else(|| default.unwrap_or_else(|| Value::from(0)), Value::from)
        });
        env.add_filter("float", |v: &Value, default: Option<Value>| {
            as_float(v).map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from)
        });
        // For Jinja2 None is not iterable; the engine iterates it as empty.
        env.add_test("iterable", |v: &Value| !v.is_none() && v.try_iter().is_ok());
        env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
        });
        // Prints the whole state: no bound, and no template for chat wants it.
        env.remove_global("debug");
        env.remove_filter("pprint");
        env.add_template_owned(NAME, source).map_err(|e| Failure::of(&e))?;
        Ok(Template { env, lost: AtomicIsize::new(0) })
    }

    /// `context` is a JSON object: the variables of the template.
    pub fn render(self: Arc<Self>, context: &[u8], now_s: i64) -> Result<String, Failure> {
        if self.lost.load(Relaxed) >= LOST_BYTES_MAX {
            return Err(Failure::limit("it took too much time or memory before and is not run again"));
        }
        let (template, context) = (self.clone(), guard::Borrowed::new(context));
        let (result, kept) = guard::run(
            // The size of a request is not the template's fault.
            move || serde_json::from_slice::<BTreeMap<String, Value>>(unsafe { context.bytes() }),
            move |variables| {
                let variables = variables.map_err(|e| Failure::failed(format!("template variables: {e}")))?;
                template.render_here(variables, now_s)
            },
        );
        let text_bytes = match &result {
            Ok(Ok(text)) => text.capacity(),
            Ok(Err(failure)) => failure.message.capacity(),
            Err(_) => 0,
        };
        self.lost.fetch_add((kept - text_bytes as isize).max(0), Relaxed);
        result?
    }

    fn render_here(&self, mut variables: BTreeMap<String, Value>, now_s: i64) -> Result<String, Failure> {
        let clock = move |format: String| strftime(now_s, &format);
        variables.insert("strftime_now".into(), Value::from_function(clock));
        let template = self.env.get_template(NAME).map_err(|e| Failure::of(&e))?;
        let mut out = Bounded(Vec::new());
        template.render_captured_to(Value::from(variables), &mut out).map_err(|e| Failure::of(&e))?;
        String::from_utf8(out.0).map_err(|e| Failure::failed(e.to_string()))
    }
}

/// The output, at most OUTPUT_BYTES_MAX of it.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > OUTPUT_BYTES_MAX - self.0.len() {
            return Err(io::Error::other(format!("output over {OUTPUT_BYTES_MAX} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes that the fuel left can pay for when a value is walked.
fn walk_budget(state: &State) -> usize {
    let left = state.fuel_levels().map_or(0, |(_, left)| left as usize);
    left.saturating_mul(WALKED_BYTES_PER_FUEL).min(OUTPUT_BYTES_MAX)
}

fn walked(state: &State, w: Writer) -> Result<String, Error> {
    state.consume_fuel((w.spent / WALKED_BYTES_PER_FUEL) as u64)?;
    Ok(w.text)
}

fn python_str(state: &State, v: &Value) -> Result<String, Error> {
    let mut w = Writer::new(walk_budget(state));
    w.str(v)?;
    walked(state, w)
}

/// float(v) of Python, where it has one.
fn as_float(v: &Value) -> Option<f64> {
    match v.as_str() {
        Some(s) => s.trim().parse().ok(),
        None => f64::try_from(v.clone()).ok(),
    }
}

/// int(v) of Python, also of a text that holds a float, as Jinja2 has it.
fn as_int(v: &Value) -> Option<i128> {
    if let Some(n) = v.as_str().and_then(|s| s.trim().parse().ok()) {
        return Some(n);
    }
    if v.is_integer() || v.kind() == ValueKind::Bool {
        return i128::try_from(v.clone()).ok().or(Some(i128::from(v.is_true())));
    }
    as_float(v).filter(|f| f.abs() < 1e38).map(|f| f as i128)
}

/// tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False) of transformers.
fn tojson(state: &State, v: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let option = |at: usize, name: &str| -> Result<Value, Error> {
        let named: Option<Value> = kwargs.get(name)?;
        Ok(named.or_else(|| args.get(at).cloned()).unwrap_or_else(|| Value::from(())))
    };
    let ascii = option(0, "ensure_ascii")?.is_true();
    let indent = match option(1, "indent")? {
        v if v.is_none() => None,
        v if v.kind() == ValueKind::String => Some(v.as_str().unwrap_or("").to_string()),
        v => Some(" ".repeat(i64::try_from(v)?.clamp(0, 64) as usize)),
    };
    let separators = match option(2, "separators")? {
        v if v.is_none() => None,
        v => Some(v.try_iter()?.map(|s| s.as_str().unwrap_or("").to_string()).collect::<Vec<_>>()),
    };
    let sort_keys = option(3, "sort_keys")?.is_true();
    kwargs.assert_all_used()?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        None => ((if indent.is_some() { "," } else { ", " }).to_string(), ": ".to_string()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "separators must be a pair")),
    };
    let style = JsonStyle { ascii, sort_keys, indent, item_separator, key_separator };
    let mut w = Writer::new(walk_budget(state));
    w.json(v, &style, 0)?;
    walked(state, w).map(Value::from)
}

/// datetime.now().strftime(format): local time, without a zone, on whole seconds.
fn strftime(now_s: i64, format: &str) -> Result<String, Error> {
    let invalid = |what: &str| Error::new(ErrorKind::InvalidOperation, what.to_string());
    // Python answers these itself: a naive time has no zone, and our clock has no microseconds.
    let mut plain = String::with_capacity(format.len());
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '%' { chars.next() } else { None }) {
            ('%', Some('f')) => plain.push_str("000000"),
            ('%', Some('z' | 'Z')) => {}
            ('%', Some(next)) => plain.extend(['%', next]),
            _ => plain.push(c),
        }
    }
    if plain.is_empty() {
        return Ok(plain);
    }
    let format = CString::new(plain).map_err(|_| invalid("strftime_now: NUL in the format"))?;
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    let mut text = vec![0u8; STRFTIME_BYTES_MAX];
    let n = unsafe {
        if libc::localtime_r(&now_s, &mut tm).is_null() {
            return Err(invalid("strftime_now: no such time"));
        }
        libc::strftime(text.as_mut_ptr() as *mut c_char, text.len(), format.as_ptr(), &tm)
    };
    if n == 0 {
        return Err(invalid("strftime_now: text too long"));
    }
    text.truncate(n);
    Ok(String::from_utf8_lossy(&text).into_owned())
}
