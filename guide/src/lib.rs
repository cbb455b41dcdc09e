//! guide: the Rust libraries behind the C program, as C functions. src/text/guide.h is the contract.
//!
//! Owns:    compiled chat templates.
//! Threads: a template is immutable; any number of threads may render it at once. Parsing and rendering
//!          run on a thread made for the call (guard.rs), because their depth of recursion, their time
//!          and their memory follow hostile input.
//! Memory:  Rust's allocator; texts handed out are given back to ig_guide_text_free. No memory is an error, too.
//! Fails:   every entry point returns a code and a message; a panic is caught and is an error too.

mod guard;
mod python;
mod source;
mod template;

use std::ffi::c_char;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use template::{Failure, Template};

/// A text owned by the caller, NUL-terminated one past `n`.
#[repr(C)]
pub struct Text {
    p: *mut c_char,
    n: usize,
}

impl Text {
    /// A copy, by malloc: it may be large, and no memory for it is an answer. False: there was none.
    fn give(&mut self, s: &str) -> bool {
        let p = unsafe { libc::malloc(s.len() + 1) } as *mut u8;
        if p.is_null() {
            return false;
        }
        unsafe {
            p.copy_from_nonoverlapping(s.as_ptr(), s.len());
            p.add(s.len()).write(0);
        }
        (self.p, self.n) = (p as *mut c_char, s.len());
        true
    }
}

/// # Safety
/// `t` is NULL or a text that this library filled.
#[no_mangle]
pub unsafe extern "C" fn ig_guide_text_free(t: *mut Text) {
    if let Some(t) = unsafe { t.as_mut() } {
        unsafe { libc::free(t.p as *mut libc::c_void) };
        t.p = std::ptr::null_mut();
        t.n = 0;
    }
}

/// Bytes of the caller, for the length of the call.
unsafe fn bytes<'a>(p: *const c_char, n: usize) -> &'a [u8] {
    if n == 0 {
        return &[];
    }
    unsafe { std::slice::from_raw_parts(p as *const u8, n) }
}

/// Runs `f`, hands its text out, and gives the code that C sees.
fn answer(text: &mut Text, f: impl FnOnce() -> Result<Option<String>, Failure>) -> i32 {
    let result = catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| Err(Failure::failed("panic")));
    match result {
        Ok(None) => 0,
        Ok(Some(s)) if text.give(&s) => 0,
        Ok(_) => template::Code::Memory as i32,
        Err(failure) => {
            text.give(&failure.message);
            failure.code as i32
        }
    }
}

/// # Safety
/// `out` and `text` point to writable places, `source` to `n` bytes.
#[no_mangle]
pub unsafe extern "C" fn ig_guide_template_make(
    out: *mut *const Template,
    source: *const c_char,
    n: usize,
    text: *mut Text,
) -> i32 {
    let source = unsafe { bytes(source, n) };
    answer(unsafe { &mut *text }, || {
        let template = Template::compile(source)?;
        unsafe { *out = Arc::into_raw(Arc::new(template)) };
        Ok(None)
    })
}

/// # Safety
/// `t` comes from ig_guide_template_make, `context` points to `n` bytes, `text` to a writable place.
#[no_mangle]
pub unsafe extern "C" fn ig_guide_template_render(
    t: *const Template,
    context: *const c_char,
    n: usize,
    now_s: i64,
    text: *mut Text,
) -> i32 {
    let context = unsafe { bytes(context, n) };
    answer(unsafe { &mut *text }, || {
        let template = unsafe {
            Arc::increment_strong_count(t);
            Arc::from_raw(t)
        };
        template.render(context, now_s).map(Some)
    })
}

/// # Safety
/// `t` is NULL or comes from ig_guide_template_make and is not used again.
#[no_mangle]
pub unsafe extern "C" fn ig_guide_template_free(t: *const Template) {
    if !t.is_null() {
        let template = unsafe { Arc::from_raw(t) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(template)));
    }
}
