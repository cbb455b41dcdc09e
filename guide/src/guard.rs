//! A thread for work whose end nobody can promise: a deep stack, a bound on memory, a bound on time.
//!
//! The engine counts its steps (fuel), but some single steps have no end that matters: a list doubled
//! sixty times is sixty steps and then one loop over 2^60 items; a namespace that holds itself prints for
//! ever, one level deeper each time. A thread cannot be killed safely, and an allocator must not unwind, so
//! a thread that is over its bounds is stopped where it is always safe: at its next allocation, before any
//! lock is taken. It stays there for good, with what it holds (at most MEMORY_MAX and its stack). Whoever
//! started it gets an error at once and should not start the like again.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::unix::thread::JoinHandleExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, Once};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Deeper than the deepest value or syntax tree that the other bounds allow: see template_test.c.
const STACK_BYTES: usize = 256 << 20;
/// What one level may use before it allocates, and what unwinding and drops may use after.
const STACK_SPARE: usize = 64 << 20;
pub const MEMORY_MAX: isize = 256 << 20;
/// Of the thread's own processor time, so that a busy machine does not count.
const CPU_MAX: Duration = Duration::from_millis(900);
/// Of the clock on the wall, for a thread that never gets a processor.
const WALL_MAX: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, PartialEq)]
enum End {
    Finished,
    Stopped,
}

#[derive(Default)]
struct Budget {
    /// What it was given at the start, to be freed by it.
    given: isize,
    /// It may be stopped. A caller's own thread may not: there bytes are counted only.
    bounded: bool,
    used: AtomicIsize,
    doomed: AtomicBool,
    end: Mutex<Option<End>>,
    ended: Condvar,
}

impl Budget {
    fn set(&self, end: End) {
        let mut now = self.end.lock().unwrap_or_else(|e| e.into_inner());
        now.get_or_insert(end);
        self.ended.notify_all();
    }

    /// Ends this thread as far as anybody can see.
    fn stop(&self) -> ! {
        let _ = BUDGET.try_with(|b| b.set(std::ptr::null()));
        self.set(End::Stopped);
        loop {
            unsafe { libc::pause() };
        }
    }
}

thread_local! {
    static BUDGET: Cell<*const Budget> = const { Cell::new(std::ptr::null()) };
    static STACK_TOP: Cell<usize> = const { Cell::new(0) };
}

fn budget_here() -> *const Budget {
    BUDGET.try_with(Cell::get).unwrap_or(std::ptr::null())
}

/// About where the stack ends now. It grows down.
#[inline(never)]
fn stack_here() -> usize {
    let mark = 0u8;
    std::hint::black_box(&mark) as *const u8 as usize
}

fn stack_is_low() -> bool {
    let top = STACK_TOP.try_with(Cell::get).unwrap_or(0);
    top.saturating_sub(stack_here()) > STACK_BYTES - STACK_SPARE
}

struct Counted;

#[global_allocator]
static ALLOCATOR: Counted = Counted;

impl Counted {
    /// Counts `n` bytes of this thread. Does not return when it is over its bounds.
    fn charge(n: isize) {
        // The thread's closure keeps the budget alive as long as the pointer is set.
        let Some(budget) = (unsafe { budget_here().as_ref() }) else { return };
        let used = budget.used.fetch_add(n, Relaxed) + n;
        if n <= 0 || !budget.bounded {
            return;
        }
        if used > budget.given + MEMORY_MAX || budget.doomed.load(Relaxed) || stack_is_low() {
            budget.stop();
        }
    }

    /// No memory from the system would end the process; here it ends the thread.
    fn checked(p: *mut u8) -> *mut u8 {
        if p.is_null() {
            match unsafe { budget_here().as_ref() } {
                Some(budget) if budget.bounded => budget.stop(),
                _ => {}
            }
        }
        p
    }
}

unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counted::charge(layout.size() as isize);
        Counted::checked(unsafe { System.alloc(layout) })
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Counted::charge(layout.size() as isize);
        Counted::checked(unsafe { System.alloc_zeroed(layout) })
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        Counted::charge(-(layout.size() as isize));
        unsafe { System.dealloc(p, layout) }
    }
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, n: usize) -> *mut u8 {
        Counted::charge(n as isize - layout.size() as isize);
        Counted::checked(unsafe { System.realloc(p, layout, n) })
    }
}

pub enum Failure {
    /// It panicked.
    Panic,
    /// No thread could be made.
    NoThread(std::io::Error),
    /// Over its bounds, and stopped or about to be. Its memory is lost.
    RanAway,
}

fn cpu_time(thread: libc::pthread_t) -> Duration {
    let mut clock = 0;
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe {
        if libc::pthread_getcpuclockid(thread, &mut clock) != 0 || libc::clock_gettime(clock, &mut at) != 0 {
            return Duration::ZERO;
        }
    }
    Duration::new(at.tv_sec as u64, at.tv_nsec as u32)
}

/// Should it loop without allocating, it does so only when nobody else wants the processor.
fn make_idle(thread: libc::pthread_t) {
    let none = libc::sched_param { sched_priority: 0 };
    unsafe { libc::pthread_setschedparam(thread, libc::SCHED_IDLE, &none) };
}

/// Runs `make` here and says how many bytes of memory what it made holds.
pub fn measure<T>(make: impl FnOnce() -> T) -> (T, isize) {
    let budget = Budget::default();
    BUDGET.with(|b| b.set(&budget));
    let result = catch_unwind(AssertUnwindSafe(make));
    BUDGET.with(|b| b.set(std::ptr::null()));
    match result {
        Ok(made) => (made, budget.used.load(Relaxed)),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// What a run left behind: its result, and the bytes it did not free (those of the result are among them).
pub type Ran<T> = (Result<T, Failure>, isize);

/// Runs `work` on a thread of its own. `given`: bytes made elsewhere that it will free.
pub fn run<T: Send + 'static>(given: isize, work: impl FnOnce() -> T + Send + 'static) -> Ran<T> {
    static QUIET: Once = Once::new();
    // A panic becomes an error of the caller; nothing else is said about it.
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));

    let budget =
        Arc::new(Budget { given, bounded: true, used: AtomicIsize::new(given), ..Budget::default() });
    let theirs = budget.clone();
    let thread = Builder::new().name("template".into()).stack_size(STACK_BYTES).spawn(move || {
        STACK_TOP.with(|s| s.set(stack_here()));
        BUDGET.with(|b| b.set(Arc::as_ptr(&theirs)));
        let result = catch_unwind(AssertUnwindSafe(work));
        BUDGET.with(|b| b.set(std::ptr::null()));
        theirs.set(End::Finished);
        result
    });
    let thread = match thread {
        Ok(thread) => thread,
        Err(e) => return (Err(Failure::NoThread(e)), 0),
    };
    let start = Instant::now();
    let mut end = budget.end.lock().unwrap_or_else(|e| e.into_inner());
    while end.is_none() {
        end = budget.ended.wait_timeout(end, LOOK_EVERY).unwrap_or_else(|e| e.into_inner()).0;
        if end.is_none() && (cpu_time(thread.as_pthread_t()) > CPU_MAX || start.elapsed() > WALL_MAX) {
            budget.doomed.store(true, Relaxed);
            make_idle(thread.as_pthread_t());
            return (Err(Failure::RanAway), MEMORY_MAX);
        }
    }
    if *end == Some(End::Stopped) {
        return (Err(Failure::RanAway), MEMORY_MAX);
    }
    drop(end);
    match thread.join() {
        Ok(Ok(result)) => (Ok(result), budget.used.load(Relaxed)),
        _ => (Err(Failure::Panic), budget.used.load(Relaxed)),
    }
}
