//! Grammars: which tokens may come next in a text that has to be of a JSON schema, a regex or a Lark grammar.
//!
//! A grammar is compiled once, on a guarded thread (guard.rs); a text that is written in it has a state of its
//! own, a deep copy, so that nobody's answer depends on who else is there. A state counts the memory that its
//! steps take. Steps are bounded by the fuel below: a mask costs tens of milliseconds at the very most.

use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{json, Value};

use crate::template::Failure;
use crate::{guard, schema};

const SOURCE_BYTES_MAX: usize = 512 << 10;
const STATE_BYTES_MAX: isize = 64 << 20;
/// All states together.
const STATES_BYTES_MAX: isize = 512 << 20;
/// Threads that ran away with so much memory in all: no grammar is compiled any more.
const LOST_BYTES_MAX: isize = 4 * guard::MEMORY_MAX;
const MESSAGE_BYTES_MAX: usize = 400;
/// Between two parts of JSON: a space, or a line's end and an indent. Without a bound a model may write blanks
/// to its limit.
const BLANKS: &str = "[ ]|\\n[ ]{0,32}";

static LOST: AtomicIsize = AtomicIsize::new(0);
static HELD: AtomicIsize = AtomicIsize::new(0);

/// The tokens of a model as llguidance wants them. The end of a text is one more, of our own: the model's end
/// tokens stand for it in a mask.
pub struct Vocab {
    factory: ParserFactory,
    n_tokens: usize,
    ends: Vec<u32>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Json,
    Regex,
    Lark,
}

pub struct Grammar {
    vocab: Arc<Vocab>,
    matcher: Mutex<Matcher>,
    bytes: isize,
}

pub struct State {
    vocab: Arc<Vocab>,
    matcher: Matcher,
    bytes: isize,
}

/// An error in its own words, without what the library tells its developers.
fn quiet<E: ToString>(e: E) -> String {
    let all = e.to_string();
    let mut text = all.split("\n<").next().unwrap_or("").trim_end().to_string();
    if text == "NoExtensionBias" {
        text = "no text satisfies it".into();
    }
    if text.len() > MESSAGE_BYTES_MAX {
        let mut end = MESSAGE_BYTES_MAX;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

fn guarded(f: guard::Failure) -> Failure {
    match f {
        guard::Failure::Panic => Failure::syntax("it cannot be compiled"),
        guard::Failure::NoThread(e) => Failure::memory(format!("no thread for the grammar: {e}")),
        guard::Failure::RanAway => Failure::limit("it takes too much time or memory to compile"),
        guard::Failure::NoMemory => Failure::memory("no memory"),
    }
}

/// Was it a bound that was met? The library says so in words only.
fn is_limit(message: &str) -> bool {
    ["too large", "too complex", "limit", "fuel", "stack level", "too big", "too many"]
        .iter()
        .any(|w| message.contains(w))
}

impl Vocab {
    /// `lens[i]` bytes of `bytes` are token i; 0: one that no text has.
    pub fn make(lens: &[u32], bytes: &[u8], ends: &[u32]) -> Result<Vocab, Failure> {
        let (lens, bytes, ends) = (lens.to_vec(), bytes.to_vec(), ends.to_vec());
        // All of it is input: how large a vocabulary is is the model's affair, not the client's.
        let (made, _) = guard::run(move || Vocab::make_here(&lens, &bytes, ends), |v| v);
        made.map_err(guarded)?
    }

    fn make_here(lens: &[u32], bytes: &[u8], ends: Vec<u32>) -> Result<Vocab, Failure> {
        let mut words = Vec::with_capacity(lens.len() + 1);
        let mut at = 0;
        for n in lens {
            let word = &bytes[at..at + *n as usize];
            // A first byte 0xff marks what is not text; no UTF-8 has it.
            words.push(if word.first() == Some(&0xff) { Vec::new() } else { word.to_vec() });
            at += *n as usize;
        }
        let end = words.len() as u32;
        words.push(b"\xff<end>".to_vec());
        let trie = TokTrie::from(&TokRxInfo::new(end + 1, end), &words);
        let env: llguidance::toktrie::TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = llguidance::earley::SlicedBiasComputer::json_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|e| Failure::failed(quiet(e)))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        limits.max_grammar_size = 200_000;
        limits.max_lexer_states = 50_000;
        Ok(Vocab { factory, n_tokens: end as usize, ends })
    }

    fn compile(&self, top: TopLevelGrammar) -> Result<Matcher, Failure> {
        let mut matcher = Matcher::new(self.factory.create_parser(top));
        // What no text satisfies shows with the first mask, and what is slow shows here.
        if !matcher.is_error() {
            let _ = matcher.compute_mask_or_eos();
        }
        match matcher.get_error() {
            None => Ok(matcher),
            Some(e) if is_limit(&e) => Err(Failure::limit(quiet(e))),
            Some(e) => Err(Failure::syntax(quiet(e))),
        }
    }

    fn compile_schema(&self, mut cleaned: Value) -> Result<Matcher, Failure> {
        let options = json!({"whitespace_pattern": BLANKS, "coerce_one_of": true});
        if cleaned == Value::Bool(true) {
            cleaned = json!({});
        }
        if let Some(o) = cleaned.as_object_mut() {
            o.insert("x-guidance".into(), options);
        }
        let top = TopLevelGrammar::from_grammar(GrammarWithLexer::from_json_schema(cleaned));
        self.compile(top)
    }

    /// The deepest part of a schema that fails by itself, and how.
    fn locate(&self, root: &Value, failure: Failure) -> Failure {
        let definitions = |part: &Value| {
            let mut part = part.clone();
            if let (Some(o), Some(r)) = (part.as_object_mut(), root.as_object()) {
                for key in ["$defs", "definitions"] {
                    if let Some(d) = r.get(key) {
                        o.insert(key.into(), d.clone());
                    }
                }
            }
            part
        };
        let (mut at, mut pointer, mut failure, mut n_tries) = (root, String::new(), failure, 0);
        'deeper: loop {
            for (below, part) in parts(at) {
                n_tries += 1;
                if n_tries > 64 {
                    break 'deeper;
                }
                if let Err(f) = self.compile_schema(definitions(part)) {
                    (at, failure) = (part, f);
                    pointer.push_str(&below);
                    continue 'deeper;
                }
            }
            break;
        }
        Failure { message: format!("at #{pointer}: {}", failure.message), ..failure }
    }
}

/// The schemas inside a schema, with where they are.
fn parts(schema: &Value) -> Vec<(String, &Value)> {
    let mut all = Vec::new();
    let Some(o) = schema.as_object() else { return all };
    for (key, v) in o {
        match (key.as_str(), v) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(m)) => {
                all.extend(m.iter().map(|(k, s)| (schema::below(&format!("/{key}"), k), s)));
            }
            ("prefixItems" | "anyOf" | "oneOf" | "allOf", Value::Array(a)) => {
                all.extend(a.iter().enumerate().map(|(i, s)| (format!("/{key}/{i}"), s)));
            }
            ("items" | "additionalProperties", Value::Object(_)) => all.push((format!("/{key}"), v)),
            _ => {}
        }
    }
    all
}

/// What a text compiled to: the matcher, and a JSON list of what was ignored.
type Compiled = (Matcher, String);

fn compile_text(vocab: &Vocab, kind: Kind, text: &[u8], strict: bool) -> Result<Compiled, Failure> {
    let text = std::str::from_utf8(text).map_err(|_| Failure::syntax("it is not UTF-8"))?;
    let none = String::from("[]");
    match kind {
        Kind::Regex => {
            schema::check_regex(text).map_err(Failure::syntax)?;
            Ok((vocab.compile(TopLevelGrammar::from_regex(text))?, none))
        }
        Kind::Lark => Ok((vocab.compile(TopLevelGrammar::from_lark(text.to_string()))?, none)),
        Kind::Json => {
            let value: Value = serde_json::from_str(text).map_err(|e| Failure::syntax(quiet(e)))?;
            let cleaned = schema::clean(&value, strict)?;
            let matcher = vocab
                .compile_schema(cleaned.schema.clone())
                .map_err(|f| vocab.locate(&cleaned.schema, f))?;
            Ok((matcher, json!(cleaned.ignored).to_string()))
        }
    }
}

impl Grammar {
    pub fn compile(
        vocab: Arc<Vocab>,
        kind: Kind,
        source: &[u8],
        strict: bool,
    ) -> Result<(Grammar, String), Failure> {
        if source.len() > SOURCE_BYTES_MAX {
            let n = source.len();
            return Err(Failure::limit(format!("it has {n} bytes, at most {SOURCE_BYTES_MAX} are allowed")));
        }
        if LOST.load(Relaxed) >= LOST_BYTES_MAX {
            return Err(Failure::memory("grammars took too much before; none is compiled until a restart"));
        }
        if HELD.load(Relaxed) >= STATES_BYTES_MAX {
            return Err(Failure::memory("the grammars in use take all the memory that they may"));
        }
        let (source, theirs) = (source.to_vec(), vocab.clone());
        let (result, kept) = guard::run(move || (), move |()| compile_text(&theirs, kind, &source, strict));
        if let Err(guard::Failure::RanAway | guard::Failure::NoMemory) = &result {
            LOST.fetch_add(kept, Relaxed);
        }
        let (matcher, ignored) = result.map_err(guarded)??;
        HELD.fetch_add(kept, Relaxed);
        Ok((Grammar { vocab, matcher: Mutex::new(matcher), bytes: kept }, ignored))
    }

    pub fn start(&self) -> State {
        let matcher = self.matcher.lock().unwrap_or_else(|e| e.into_inner());
        let (matcher, bytes) = guard::metered(|| matcher.deep_clone());
        HELD.fetch_add(bytes, Relaxed);
        State { vocab: self.vocab.clone(), matcher, bytes }
    }
}

impl Drop for Grammar {
    fn drop(&mut self) {
        HELD.fetch_sub(self.bytes, Relaxed);
    }
}

impl Drop for State {
    fn drop(&mut self) {
        HELD.fetch_sub(self.bytes, Relaxed);
    }
}

impl State {
    fn step<T>(&mut self, f: impl FnOnce(&mut Matcher) -> Result<T, String>) -> Result<T, Failure> {
        let (result, bytes) = guard::metered(|| f(&mut self.matcher));
        self.bytes += bytes;
        HELD.fetch_add(bytes, Relaxed);
        if self.bytes > STATE_BYTES_MAX {
            return Err(Failure::limit(format!("the grammar takes more than {STATE_BYTES_MAX} bytes")));
        }
        result.map_err(|e| if is_limit(&e) { Failure::limit(e) } else { Failure::failed(e) })
    }

    /// Bit i of word i / 32: token i may come next. End tokens may where the text may end, and only there.
    pub fn mask(&mut self, out: &mut [u32]) -> Result<(), Failure> {
        let (n, ends) = (self.vocab.n_tokens, self.vocab.ends.clone());
        let words = self.step(|m| {
            let mask = m.compute_mask_or_eos().map_err(quiet)?;
            out.fill(0);
            for (to, from) in out.iter_mut().zip(mask.as_slice()) {
                *to = *from;
            }
            Ok(mask.is_allowed(n as u32))
        });
        let may_end = words?;
        let mut set = |id: usize, on: bool| {
            if let Some(word) = out.get_mut(id / 32) {
                *word = *word & !(1 << (id % 32)) | (u32::from(on) << (id % 32));
            }
        };
        set(n, false); // the end that is ours; what lies behind it in the word is 0
        ends.iter().for_each(|e| set(*e as usize, may_end));
        Ok(())
    }

    pub fn take(&mut self, token: u32) -> Result<(), Failure> {
        self.step(|m| m.consume_token(token).map_err(quiet))
    }
}
