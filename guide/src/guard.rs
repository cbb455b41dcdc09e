//! A thread for work whose end nobody can promise: a deep stack, a bound on memory, a bound on time.
//!
//! The engine counts its steps (fuel), but some single steps have no end that matters: a list doubled
//! sixty times is sixty steps and then one loop over 2^60 items; a namespace that holds itself prints for
//! ever, one level deeper each time. A thread cannot be killed safely, and an allocator must not unwind, so
//! a thread that is over its bounds is stopped where it is always safe: at its next allocation, before any
//! lock is taken. It stays there for good, with what it holds (at most MEMORY_MAX and its stack). Whoever
//! started it gets an error at once and should not start the like again.
//!
//! When the system has no memory, Rust would end the process. A guarded thread is stopped instead; other
//! threads do small things only, for which there is a reserve. Large things are made by guarded threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicIsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, Once};
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
    NoMemory,
}

#[derive(Default)]
struct Budget {
    /// The work has begun: before, the inputs are made, which cost what they cost.
    begun: AtomicBool,
    /// What the inputs hold, and the processor time that they took.
    given: AtomicIsize,
    given_ns: AtomicI64,
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

    fn begin(&self) {
        let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut at) };
        self.given_ns.store(at.tv_sec * 1_000_000_000 + at.tv_nsec, Relaxed);
        self.given.store(self.used.load(Relaxed), Relaxed);
        self.begun.store(true, SeqCst);
    }

    /// Ends this thread as far as anybody can see.
    fn stop(&self, end: End) -> ! {
        let _ = BUDGET.try_with(|b| b.set(std::ptr::null()));
        self.set(end);
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

/// What a thread without a budget gets when the system has no memory: starting a thread and saying what is
/// wrong take a few hundred bytes. All of it is free again when the last block of it was given back.
struct Reserve {
    bytes: UnsafeCell<[u8; RESERVE_BYTES]>,
    at: Mutex<(usize, usize)>, // bytes taken, blocks that live
}

const RESERVE_BYTES: usize = 64 << 10;
unsafe impl Sync for Reserve {}
static RESERVE: Reserve = Reserve { bytes: UnsafeCell::new([0; RESERVE_BYTES]), at: Mutex::new((0, 0)) };

impl Reserve {
    fn has(&self, p: *mut u8) -> bool {
        let from = self.bytes.get() as usize;
        (from..from + RESERVE_BYTES).contains(&(p as usize))
    }

    fn take(&self, layout: Layout) -> *mut u8 {
        let mut at = self.at.lock().unwrap_or_else(|e| e.into_inner());
        let base = self.bytes.get() as usize;
        let from = (base + at.0).next_multiple_of(layout.align()) - base;
        if layout.size() > RESERVE_BYTES - from.min(RESERVE_BYTES) {
            return std::ptr::null_mut();
        }
        *at = (from + layout.size(), at.1 + 1);
        (base + from) as *mut u8
    }

    fn give_back(&self) {
        let mut at = self.at.lock().unwrap_or_else(|e| e.into_inner());
        at.1 -= 1;
        if at.1 == 0 {
            at.0 = 0;
        }
    }
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
        if n <= 0 || !budget.begun.load(Relaxed) {
            return;
        }
        let over = used > budget.given.load(Relaxed) + MEMORY_MAX;
        if over || budget.doomed.load(Relaxed) || stack_is_low() {
            budget.stop(End::Stopped);
        }
    }

    fn checked(p: *mut u8, layout: Layout) -> *mut u8 {
        if !p.is_null() {
            return p;
        }
        match unsafe { budget_here().as_ref() } {
            Some(budget) => budget.stop(End::NoMemory),
            None => RESERVE.take(layout),
        }
    }
}

unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counted::charge(layout.size() as isize);
        Counted::checked(unsafe { System.alloc(layout) }, layout)
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Counted::charge(layout.size() as isize);
        let p = Counted::checked(unsafe { System.alloc_zeroed(layout) }, layout);
        if RESERVE.has(p) {
            unsafe { p.write_bytes(0, layout.size()) };
        }
        p
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        Counted::charge(-(layout.size() as isize));
        if RESERVE.has(p) {
            return RESERVE.give_back();
        }
        unsafe { System.dealloc(p, layout) }
    }
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, n: usize) -> *mut u8 {
        let grown = unsafe { Layout::from_size_align_unchecked(n, layout.align()) };
        if !RESERVE.has(p) {
            Counted::charge(n as isize - layout.size() as isize);
            let q = unsafe { System.realloc(p, layout, n) };
            if !q.is_null() {
                return q;
            }
            let q = Counted::checked(q, grown);
            if !q.is_null() {
                unsafe {
                    q.copy_from_nonoverlapping(p, n.min(layout.size()));
                    System.dealloc(p, layout);
                }
            }
            return q;
        }
        let q = unsafe { self.alloc(grown) };
        if !q.is_null() {
            unsafe {
                q.copy_from_nonoverlapping(p, n.min(layout.size()));
                self.dealloc(p, layout);
            }
        }
        q
    }
}

pub enum Failure {
    /// It panicked.
    Panic,
    /// No thread could be made.
    NoThread(io::Error),
    /// Over its bounds, and stopped or about to be. Its memory is lost.
    RanAway,
    /// The system had none. What it holds is lost.
    NoMemory,
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

/// What a run left behind: its result, and the bytes it did not free (those of the result are among them).
pub type Ran<T> = (Result<T, Failure>, isize);

/// Bytes of whoever calls run, which reads them in `inputs` only: run does not return before that has ended.
pub struct Borrowed(*const u8, usize);
unsafe impl Send for Borrowed {}

impl Borrowed {
    pub fn new(bytes: &[u8]) -> Borrowed {
        Borrowed(bytes.as_ptr(), bytes.len())
    }
    /// # Safety
    /// Called in `inputs`.
    pub unsafe fn bytes(&self) -> &[u8] {
        unsafe { std::slice::from_raw_parts(self.0, self.1) }
    }
}

/// Not std's: that ends the process when there is no memory for its own records.
fn spawn(main: Box<dyn FnOnce() + Send>) -> io::Result<libc::pthread_t> {
    extern "C" fn enter(arg: *mut c_void) -> *mut c_void {
        let main = unsafe { Box::from_raw(arg as *mut Box<dyn FnOnce() + Send>) };
        unsafe { libc::pthread_setname_np(libc::pthread_self(), c"template".as_ptr()) };
        main(); // it catches its panics
        std::ptr::null_mut()
    }
    let arg = Box::into_raw(Box::new(main));
    unsafe {
        let (mut thread, mut attr) = (std::mem::zeroed(), std::mem::zeroed());
        libc::pthread_attr_init(&mut attr);
        libc::pthread_attr_setstacksize(&mut attr, STACK_BYTES);
        let code = libc::pthread_create(&mut thread, &attr, enter, arg as *mut c_void);
        libc::pthread_attr_destroy(&mut attr);
        if code != 0 {
            drop(Box::from_raw(arg));
            return Err(io::Error::from_raw_os_error(code));
        }
        Ok(thread)
    }
}

/// Runs `inputs`, then `work` on what it gives, on a thread of their own. The bounds are those of `work`.
pub fn run<I, T: Send + 'static>(
    inputs: impl FnOnce() -> I + Send + 'static,
    work: impl FnOnce(I) -> T + Send + 'static,
) -> Ran<T> {
    static QUIET: Once = Once::new();
    // A panic becomes an error of the caller; nothing else is said about it.
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));

    let shared = Arc::new((Budget::default(), Mutex::new(None)));
    let theirs = shared.clone();
    let budget = &shared.0;
    let started = spawn(Box::new(move || {
        let (budget, result) = &*theirs;
        STACK_TOP.with(|s| s.set(stack_here()));
        BUDGET.with(|b| b.set(budget));
        let got = catch_unwind(AssertUnwindSafe(|| {
            let inputs = inputs();
            budget.begin();
            work(inputs)
        }));
        BUDGET.with(|b| b.set(std::ptr::null()));
        *result.lock().unwrap_or_else(|e| e.into_inner()) = got.ok();
        budget.set(End::Finished);
    }));
    let thread = match started {
        Ok(thread) => thread,
        Err(e) => return (Err(Failure::NoThread(e)), 0),
    };
    let mut start = Instant::now();
    let mut end = budget.end.lock().unwrap_or_else(|e| e.into_inner());
    while end.is_none() {
        end = budget.ended.wait_timeout(end, LOOK_EVERY).unwrap_or_else(|e| e.into_inner()).0;
        if !budget.begun.load(SeqCst) {
            start = Instant::now();
            continue;
        }
        let given = Duration::from_nanos(budget.given_ns.load(Relaxed) as u64);
        let late = cpu_time(thread) > given + CPU_MAX || start.elapsed() > WALL_MAX;
        if end.is_none() && late {
            budget.doomed.store(true, Relaxed);
            make_idle(thread);
            unsafe { libc::pthread_detach(thread) };
            return (Err(Failure::RanAway), MEMORY_MAX);
        }
    }
    match *end {
        Some(End::Stopped) => return (Err(Failure::RanAway), MEMORY_MAX),
        Some(End::NoMemory) => return (Err(Failure::NoMemory), budget.used.load(Relaxed)),
        _ => drop(end),
    }
    unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
    let result = shared.1.lock().unwrap_or_else(|e| e.into_inner()).take();
    (result.ok_or(Failure::Panic), budget.used.load(Relaxed))
}
