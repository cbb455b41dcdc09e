//! A JSON schema from outside, looked through before anything is compiled from it.
//!
//! Each part is checked by name, so that what is wrong is told with the pointer to it. What only describes is
//! dropped; what restricts and cannot be kept to is an error in a strict schema, else it is dropped and listed.
//! References stay inside the schema: nothing is ever fetched.

use serde_json::{json, Map, Value};

use crate::template::Failure;

/// Nested schemas and values; the parser before us has a bound of its own.
const DEPTH_MAX: usize = 100;
const NODES_MAX: usize = 20_000;
/// Of minItems, maxLength and the like.
const COUNT_MAX: u64 = 1_000_000;
const PATTERN_BYTES_MAX: usize = 4096;
/// Of multipleOf in units of its last digit: the automaton that divides has as many states.
const STEPS_MAX: f64 = 10_000.0;
const ENUM_MAX: usize = 10_000;
const IGNORED_MAX: usize = 64;

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
const DESCRIBES: [&str; 13] = [
    "$schema",
    "$id",
    "id",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentMediaType",
    "contentEncoding",
];

pub struct Cleaned {
    pub schema: Value,
    /// Pointers to what was dropped though it restricts.
    pub ignored: Vec<String>,
}

struct Walk<'a> {
    root: &'a Value,
    strict: bool,
    n_nodes: usize,
    ignored: Vec<String>,
    n_ignored: usize,
}

fn wrong(at: &str, what: impl std::fmt::Display) -> Failure {
    Failure::syntax(format!("at {}: {what}", shown(at)))
}

fn limit(at: &str, what: impl std::fmt::Display) -> Failure {
    Failure::limit(format!("at {}: {what}", shown(at)))
}

fn cut(s: &str, n: usize) -> &str {
    let mut end = s.len().min(n);
    while !s.is_char_boundary(end) {
        end -= 1;
    }
    &s[..end]
}

/// The end of a pointer says more than its beginning.
fn shown(at: &str) -> String {
    let mut from = at.len().saturating_sub(200);
    while !at.is_char_boundary(from) {
        from += 1;
    }
    if from == 0 {
        return format!("#{at}");
    }
    format!("#...{}", &at[from..])
}

/// A value, short enough for a message.
fn brief(v: &Value) -> String {
    match v {
        Value::Object(_) => "an object".into(),
        Value::Array(_) => "an array".into(),
        Value::String(s) => format!("\"{}\"", cut(s, 60)),
        other => other.to_string(),
    }
}

pub fn below(at: &str, key: &str) -> String {
    format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// A pattern that the regex engine cannot read is told by its own words.
pub fn check_regex(pattern: &str) -> Result<(), String> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(format!("the pattern has {} bytes, at most {PATTERN_BYTES_MAX} are allowed", pattern.len()));
    }
    match regex_syntax::ParserBuilder::new().nest_limit(100).build().parse(pattern) {
        Ok(_) => Ok(()),
        Err(regex_syntax::Error::Parse(e)) => Err(format!("the pattern is not supported: {}", e.kind())),
        Err(regex_syntax::Error::Translate(e)) => Err(format!("the pattern is not supported: {}", e.kind())),
        Err(_) => Err("the pattern is not supported".into()),
    }
}

fn percent_decoded(s: &str) -> Option<String> {
    let (bytes, mut out, mut i) = (s.as_bytes(), Vec::with_capacity(s.len()), 0);
    while i < bytes.len() {
        let hex = if bytes[i] == b'%' { s.get(i + 1..i + 3) } else { None };
        match hex.and_then(|h| u8::from_str_radix(h, 16).ok()) {
            Some(b) => (out.push(b), i += 3).1,
            None => (out.push(bytes[i]), i += 1).1,
        }
    }
    String::from_utf8(out).ok()
}

impl Walk<'_> {
    fn enter(&mut self, at: &str, depth: usize) -> Result<(), Failure> {
        self.n_nodes += 1;
        if self.n_nodes > NODES_MAX {
            return Err(limit(at, format_args!("the schema has more than {NODES_MAX} parts")));
        }
        if depth > DEPTH_MAX {
            return Err(limit(at, format_args!("the schema is nested deeper than {DEPTH_MAX}")));
        }
        Ok(())
    }

    fn drop_or_refuse(&mut self, at: &str, what: &str) -> Result<(), Failure> {
        if self.strict {
            return Err(wrong(at, format_args!("{what} is not supported in a strict schema")));
        }
        self.n_ignored += 1;
        if self.ignored.len() < IGNORED_MAX {
            self.ignored.push(shown(at));
        }
        Ok(())
    }

    fn schema(&mut self, v: &Value, at: &str, depth: usize) -> Result<Value, Failure> {
        self.enter(at, depth)?;
        let from = match v {
            Value::Bool(_) => return Ok(v.clone()),
            Value::Object(o) => o,
            other => {
                return Err(wrong(at, format_args!("a schema is an object or a boolean, not {}", brief(other))))
            }
        };
        let mut to = Map::new();
        for (key, value) in from {
            self.keyword(key, value, &below(at, key), depth + 1, &mut to)?;
        }
        for (least, most) in [
            ("minItems", "maxItems"),
            ("minLength", "maxLength"),
            ("minProperties", "maxProperties"),
            ("minimum", "maximum"),
        ] {
            let (lo, hi) = (to.get(least).and_then(Value::as_f64), to.get(most).and_then(Value::as_f64));
            if let (Some(lo), Some(hi)) = (lo, hi) {
                if lo > hi {
                    return Err(wrong(&below(at, least), format_args!("{least} {lo} is more than {most} {hi}")));
                }
            }
        }
        if from.get("nullable") == Some(&Value::Bool(true)) {
            allow_null(&mut to);
        }
        Ok(Value::Object(to))
    }

    fn keyword(
        &mut self,
        key: &str,
        v: &Value,
        at: &str,
        depth: usize,
        to: &mut Map<String, Value>,
    ) -> Result<(), Failure> {
        let kept = match key {
            _ if DESCRIBES.contains(&key) || key == "nullable" => return Ok(()),
            "properties" | "patternProperties" | "$defs" | "definitions" => {
                let Value::Object(o) = v else { return Err(wrong(at, format_args!("{key} must be an object"))) };
                let mut all = Map::new();
                for (name, s) in o {
                    if key == "patternProperties" {
                        check_regex(name).map_err(|e| wrong(&below(at, name), e))?;
                    }
                    all.insert(name.clone(), self.schema(s, &below(at, name), depth)?);
                }
                Value::Object(all)
            }
            "prefixItems" | "anyOf" | "oneOf" | "allOf" => match v {
                Value::Array(a) if !a.is_empty() => {
                    let parts = a.iter().enumerate();
                    let parts = parts.map(|(i, s)| self.schema(s, &format!("{at}/{i}"), depth));
                    Value::Array(parts.collect::<Result<_, _>>()?)
                }
                _ => return Err(wrong(at, format_args!("{key} must be an array with at least one schema"))),
            },
            "items" | "additionalItems" | "additionalProperties" => self.schema(v, at, depth)?,
            "type" => self.types(v, at)?,
            "enum" => match v {
                Value::Array(a) if a.is_empty() => return Err(wrong(at, "enum has no values")),
                Value::Array(a) if a.len() > ENUM_MAX => {
                    return Err(limit(at, format_args!("enum has {} values, at most {ENUM_MAX} are allowed", a.len())))
                }
                Value::Array(a) => {
                    for (i, value) in a.iter().enumerate() {
                        self.value(value, &format!("{at}/{i}"), depth)?;
                    }
                    v.clone()
                }
                _ => return Err(wrong(at, "enum must be an array")),
            },
            "const" => {
                self.value(v, at, depth)?;
                v.clone()
            }
            "minItems" | "maxItems" | "minLength" | "maxLength" | "minProperties" | "maxProperties" => {
                let n = v.as_u64().or_else(|| v.as_f64().filter(|f| *f >= 0.0 && f.fract() == 0.0).map(|f| f as u64));
                match n {
                    Some(n) if n <= COUNT_MAX => json!(n),
                    Some(n) => return Err(limit(at, format_args!("{key} is {n}, at most {COUNT_MAX} is allowed"))),
                    None => return Err(wrong(at, format_args!("{key} must be a whole number of 0 or more, not {}", brief(v)))),
                }
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => match v {
                Value::Number(_) if key == "multipleOf" && !v.as_f64().is_some_and(|f| f > 0.0) => {
                    return Err(wrong(at, "multipleOf must be more than 0"))
                }
                Value::Number(_) if key == "multipleOf" && !small_step(v.as_f64().unwrap_or(0.0)) => {
                    return Err(limit(at, format_args!("multipleOf {v} is over {STEPS_MAX} or has too many digits")))
                }
                Value::Number(_) => v.clone(),
                Value::Bool(_) if key.starts_with("exclusive") => v.clone(),
                _ => return Err(wrong(at, format_args!("{key} must be a number, not {}", brief(v)))),
            },
            "required" => {
                if !v.as_array().is_some_and(|a| a.iter().all(Value::is_string)) {
                    return Err(wrong(at, "required must be an array of names"));
                }
                v.clone()
            }
            "pattern" => {
                let Some(pattern) = v.as_str() else { return Err(wrong(at, "pattern must be a string")) };
                check_regex(pattern).map_err(|e| wrong(at, e))?;
                v.clone()
            }
            "format" => match v.as_str() {
                Some(name) if FORMATS.contains(&name) => v.clone(),
                Some(name) => return self.drop_or_refuse(at, &format!("the format {}", cut(name, 40))),
                None => return Err(wrong(at, "format must be a string")),
            },
            "$ref" => self.reference(v, at)?,
            "$anchor" if v.is_string() => v.clone(),
            _ if key.starts_with("x-") && key != "x-guidance" => return Ok(()),
            _ => return self.drop_or_refuse(at, &format!("the keyword {}", cut(key, 40))),
        };
        to.insert(key.to_string(), kept);
        Ok(())
    }

    fn types(&mut self, v: &Value, at: &str) -> Result<Value, Failure> {
        let known = |t: &Value| t.as_str().is_some_and(|t| TYPES.contains(&t));
        match v {
            Value::Array(a) if !a.is_empty() && a.iter().all(known) => {
                let mut types: Vec<Value> = Vec::new();
                for t in a {
                    if !types.contains(t) {
                        types.push(t.clone());
                    }
                }
                Ok(Value::Array(types))
            }
            _ if known(v) => Ok(v.clone()),
            _ => Err(wrong(at, format_args!("type {} is none of {}, nor a list of them", brief(v), TYPES.join(", ")))),
        }
    }

    fn value(&mut self, v: &Value, at: &str, depth: usize) -> Result<(), Failure> {
        self.enter(at, depth)?;
        match v {
            Value::Array(a) => a.iter().try_for_each(|x| self.value(x, at, depth + 1)),
            Value::Object(o) => o.values().try_for_each(|x| self.value(x, at, depth + 1)),
            _ => Ok(()),
        }
    }

    fn reference(&mut self, v: &Value, at: &str) -> Result<Value, Failure> {
        let Some(target) = v.as_str() else { return Err(wrong(at, "$ref must be a string")) };
        let told = cut(target, 80);
        let Some(pointer) = target.strip_prefix('#') else {
            return Err(wrong(at, format_args!("$ref {told} leaves the schema; only #... is allowed")));
        };
        if !pointer.is_empty() && !pointer.starts_with('/') {
            return Ok(v.clone()); // an anchor: the compiler finds it or says that it does not
        }
        match percent_decoded(pointer).as_deref().and_then(|p| self.root.pointer(p)) {
            Some(Value::Object(_) | Value::Bool(_)) => Ok(v.clone()),
            _ => Err(wrong(at, format_args!("$ref {told} names nothing in the schema"))),
        }
    }
}

fn small_step(f: f64) -> bool {
    (0..=4).map(|digits| f * 10f64.powi(digits)).any(|n| n <= STEPS_MAX && (n - n.round()).abs() < 1e-9 * n && n >= 1.0)
}

/// `nullable: true`, as OpenAPI has it.
fn allow_null(schema: &mut Map<String, Value>) {
    match schema.get_mut("type") {
        Some(Value::Array(types)) if !types.contains(&json!("null")) => types.push(json!("null")),
        Some(t @ Value::String(_)) => *t = json!([t.clone(), "null"]),
        _ => {}
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        if !values.contains(&Value::Null) {
            values.push(Value::Null);
        }
    }
}

/// A schema of which a grammar can be made, or what is wrong with it and where.
pub fn clean(schema: &Value, strict: bool) -> Result<Cleaned, Failure> {
    let mut walk = Walk { root: schema, strict, n_nodes: 0, ignored: Vec::new(), n_ignored: 0 };
    let cleaned = walk.schema(schema, "", 0)?;
    if walk.n_ignored > walk.ignored.len() {
        walk.ignored.push(format!("and {} more", walk.n_ignored - walk.ignored.len()));
    }
    Ok(Cleaned { schema: cleaned, ignored: walk.ignored })
}
