//! Runs work on untrusted input in a separate thread with limits on memory, stack and time.
//!
//! minijinja's documented interface limits the steps of a render, the depth of its calls and the
//! work of its host's functions. It does not limit the data that one step makes or walks: `~` and
//! `+` double a text, `*` repeats it (each up to 100 MB), `{% set %}` captures raw text, `==`, `<`
//! and `in` compare self-containing lists exponentially often, and constants are folded while
//! compiling. So the allocator counts the memory that a sandbox's thread asks for. An allocator can
//! neither fail (Rust ends the process) nor unwind: a thread over its limit is reported to its
//! caller and sleeps for ever.
//!
//! So nothing that a client may send must bring an honest template there: before every filter, every
//! method and every printed text, [`check`] refuses with an error what would leave less than a
//! reserve for the operators between them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::unix::thread::JoinHandleExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{panic_text, Error, ErrorCode, Result};

/// The limits of the work.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// The work's input, as error messages call it.
    pub input: &'static str,
    /// Memory in use at one time, as checked by [`check`]. The allocator stops the thread at
    /// `HARD_LIMIT` times as much.
    pub bytes: usize,
    /// Whether the allocator also stops the thread at `MAX_BLOCKS`, and after its time at `GRACE`
    /// allocations. Not for work whose nesting is bounded and which surely ends.
    pub stops_at_blocks: bool,
    /// The thread's own processor time, so that a busy machine makes no work fail.
    pub time: Duration,
}

const HARD_LIMIT: usize = 4;
/// Blocks in use at one time. Values nest at most as deep as there are blocks; dropping, comparing
/// and printing them recurse, with at most 2 KB of stack per level.
const MAX_BLOCKS: i64 = 1 << 17;
/// The blocks that only the allocator may hand out, as it does with bytes.
const RESERVED_BLOCKS: i64 = MAX_BLOCKS / 2;
/// Allocations allowed after the time is up. A loop that prints or calls something stops by itself; one
/// that only joins texts ends here, for a text is taken apart into at most 65,536. Walks
/// over self-containing lists do not stop, and allocate an iterator for each list.
const GRACE: u64 = 1 << 20;
/// Address space; untouched pages cost nothing.
const STACK_BYTES: usize = 256 << 20;
/// Limit on threads of one owner of `Strays` that remain after their caller was told of an exceeded limit. A
/// thread over its time runs on idle processor time until its next `check`, the end of its steps or
/// of its grace; one over its memory or grace sleeps and keeps its memory. With this many left, no
/// new work of this owner is begun.
const MAX_STRAYS: usize = 4;

/// Counts the threads of one owner that remain after their caller was told of an exceeded limit.
#[derive(Debug, Default)]
pub struct Strays {
    remaining: AtomicUsize,
    /// Those of `remaining` that sleep for ever.
    asleep: AtomicUsize,
}

impl Strays {
    pub fn count(&self) -> usize {
        self.remaining.load(Relaxed)
    }

    /// Those that sleep for ever.
    pub fn asleep(&self) -> usize {
        self.asleep.load(Relaxed)
    }

    /// Whether no work will ever be begun again.
    pub fn stopped(&self) -> bool {
        self.asleep() >= MAX_STRAYS
    }
}

/// Runs `work` and waits for it, at most for the time allowed.
pub fn run<T: Send + 'static>(
    allowed: Allowance,
    strays: &Arc<Strays>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if strays.count() >= MAX_STRAYS {
        let remedy = match strays.stopped() {
            true => "none is begun again until the program is started again",
            false => "none is begun until one does; send the request again later",
        };
        return Err(Error::new(
            ErrorCode::Unavailable,
            format!(
                "{MAX_STRAYS} uses of a {} went over their limits and have not ended; {remedy}",
                allowed.input
            ),
        ));
    }
    let watch = Arc::new(Watch::new(allowed.input, Arc::clone(strays)));
    let inside = Arc::clone(&watch);
    let thread = std::thread::Builder::new()
        .name(allowed.input.to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            ACCOUNT.with(|account| account.open(&inside, allowed));
            let result = catch_unwind(AssertUnwindSafe(work));
            ACCOUNT.with(Account::close);
            inside.leave(Progress::Ended);
            result
        })
        .map_err(|e| {
            Error::new(
                ErrorCode::SystemLimit,
                format!("the system refused a thread: {e}; see `ulimit -u` and `-v`"),
            )
        })?;
    match watch.wait(&thread, allowed.time) {
        Progress::Ended => match thread.join() {
            Ok(Ok(result)) => result,
            // For example "capacity overflow".
            Ok(Err(panic)) => Err(Error::invalid(format!(
                "the {} made its interpreter fail: {}",
                allowed.input,
                panic_text(&*panic)
            ))),
            Err(_) => Err(Error::new(ErrorCode::Internal, "a sandbox lost its result")),
        },
        Progress::Stuck => Err(too_much_data(allowed.input)),
        Progress::Running => Err(too_slow(allowed.input)),
    }
}

/// Whether this thread's sandbox, if any, has time left and room for so much more.
pub fn check(bytes: usize, blocks: usize) -> Result<()> {
    ACCOUNT.with(|account| {
        // As in `charge`.
        let Some(watch) = (unsafe { account.watch.get().as_ref() }) else {
            return Ok(());
        };
        if watch.over.load(Relaxed) {
            return Err(too_slow(watch.input));
        }
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let blocks = i64::try_from(blocks).unwrap_or(i64::MAX);
        let fits = account.bytes_left.get().saturating_sub(bytes) >= account.reserve.get()
            && account.blocks_left.get().saturating_sub(blocks) >= RESERVED_BLOCKS;
        match fits {
            true => Ok(()),
            false => Err(too_much_data(watch.input)),
        }
    })
}

/// Memory that this thread's sandbox holds now; 0 outside one.
pub fn bytes_held() -> usize {
    ACCOUNT.with(|account| match account.watch.get().is_null() {
        true => 0,
        false => (account.hard.get() - account.bytes_left.get()).max(0) as usize,
    })
}

/// What this thread has allocated so far, less what it has freed: only differences mean something.
pub fn bytes_owned() -> i64 {
    ACCOUNT.with(|account| account.owned.get())
}

fn too_much_data(input: &str) -> Error {
    Error::new(
        ErrorCode::ResourceExhausted,
        format!("the {input} builds too much data"),
    )
}

fn too_slow(input: &str) -> Error {
    Error::new(
        ErrorCode::ResourceExhausted,
        format!("the {input} takes too long"),
    )
}

#[derive(Clone, Copy, PartialEq)]
enum Progress {
    Running,
    Ended,
    Stuck,
}

/// State shared by a sandbox and its caller.
struct Watch {
    input: &'static str,
    /// The caller has gone; code that checks the clock may end the work.
    over: AtomicBool,
    strays: Arc<Strays>,
    state: Mutex<WatchState>,
    changed: Condvar,
}

struct WatchState {
    progress: Progress,
    /// Counted in `strays`.
    stray: bool,
}

impl Watch {
    fn new(input: &'static str, strays: Arc<Strays>) -> Self {
        Self {
            input,
            over: AtomicBool::new(false),
            strays,
            state: Mutex::new(WatchState {
                progress: Progress::Running,
                stray: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Called once by the sandbox's thread, which allocates nothing here.
    fn leave(&self, progress: Progress) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.progress = progress;
        match (progress, state.stray) {
            (Progress::Stuck, false) => self.strays.remaining.fetch_add(1, Relaxed),
            (Progress::Ended, true) => self.strays.remaining.fetch_sub(1, Relaxed),
            _ => 0,
        };
        if progress == Progress::Stuck {
            self.strays.asleep.fetch_add(1, Relaxed);
        }
        state.stray = progress == Progress::Stuck;
        self.changed.notify_one();
    }

    /// Waits until the sandbox leaves or its thread has run for `time`; `Running` means the latter.
    fn wait<T>(&self, thread: &JoinHandle<T>, time: Duration) -> Progress {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.progress == Progress::Running {
            let left = time.saturating_sub(thread_time(thread));
            if left.is_zero() {
                state.stray = true;
                self.strays.remaining.fetch_add(1, Relaxed);
                self.over.store(true, Relaxed);
                step_back(thread);
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.progress
    }
}

/// The processor time of a thread so far; nothing if it has ended.
fn thread_time<T>(thread: &JoinHandle<T>) -> Duration {
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // The thread has not been joined, so its handle is valid; both pointers belong to us.
    let known = unsafe {
        libc::pthread_getcpuclockid(thread.as_pthread_t(), &mut clock) == 0
            && libc::clock_gettime(clock, &mut time) == 0
    };
    match known {
        true => Duration::new(time.tv_sec as u64, time.tv_nsec as u32),
        false => Duration::ZERO,
    }
}

/// Leaves a thread only idle processor time. Steps that neither allocate nor call our functions (`==`
/// and `in` on long texts) continue until the fuel is used up, and minijinja's documented interface
/// has no way to interrupt them.
fn step_back<T>(thread: &JoinHandle<T>) {
    let idle = libc::sched_param { sched_priority: 0 };
    // As in `thread_time`. Every thread may lower its priority; if the system refuses, fuel still ends it.
    unsafe { libc::pthread_setschedparam(thread.as_pthread_t(), libc::SCHED_IDLE, &idle) };
}

/// A thread's memory account; closed unless the thread is a working sandbox.
struct Account {
    watch: Cell<*const Watch>,
    /// `bytes_left` at first.
    hard: Cell<i64>,
    bytes_left: Cell<i64>,
    /// The part of `bytes_left` that only the allocator may hand out.
    reserve: Cell<i64>,
    blocks_left: Cell<i64>,
    grace: Cell<u64>,
    /// Allocated less freed, also outside a sandbox.
    owned: Cell<i64>,
}

thread_local! {
    // Without a destructor and without lazy initialization: the allocator uses it.
    static ACCOUNT: Account = const {
        Account {
            watch: Cell::new(null()),
            hard: Cell::new(0),
            bytes_left: Cell::new(0),
            reserve: Cell::new(0),
            blocks_left: Cell::new(0),
            grace: Cell::new(0),
            owned: Cell::new(0),
        }
    };
}

impl Account {
    fn open(&self, watch: &Arc<Watch>, allowed: Allowance) {
        let hard = i64::try_from(allowed.bytes * HARD_LIMIT).unwrap_or(i64::MAX);
        self.hard.set(hard);
        self.bytes_left.set(hard);
        self.reserve.set(hard - hard / HARD_LIMIT as i64);
        self.blocks_left.set(if allowed.stops_at_blocks {
            MAX_BLOCKS
        } else {
            // Not the largest number: what was made outside may be given back in here.
            i64::MAX / 2
        });
        self.grace.set(if allowed.stops_at_blocks {
            GRACE
        } else {
            u64::MAX
        });
        self.watch.set(Arc::as_ptr(watch));
    }

    fn close(&self) {
        self.watch.set(null());
    }

    /// Called before memory is handed out. Does not return if that would exceed the limit.
    fn charge(&self, bytes: i64, blocks: i64) {
        self.owned.set(self.owned.get().wrapping_add(bytes));
        // The watch outlives the work, and is null outside it.
        let Some(watch) = (unsafe { self.watch.get().as_ref() }) else {
            return;
        };
        self.bytes_left.set(self.bytes_left.get() - bytes);
        self.blocks_left.set(self.blocks_left.get() - blocks);
        if watch.over.load(Relaxed) {
            self.grace.set(self.grace.get().saturating_sub(1));
        }
        if self.bytes_left.get() < 0 || self.blocks_left.get() < 0 || self.grace.get() == 0 {
            self.stop();
        }
    }

    fn refund(&self, bytes: i64, blocks: i64) {
        self.owned.set(self.owned.get().wrapping_sub(bytes));
        self.bytes_left.set(self.bytes_left.get() + bytes);
        self.blocks_left.set(self.blocks_left.get() + blocks);
    }

    /// Sleeps for ever, except while a panic is reported, under a lock that others need.
    #[cold]
    fn stop(&self) {
        if std::thread::panicking() {
            return;
        }
        let watch = self.watch.replace(null());
        // The thread holds the Arc that `watch` points into, and keeps it.
        unsafe { (*watch).leave(Progress::Stuck) };
        loop {
            std::thread::sleep(Duration::from_secs(u64::from(u32::MAX)));
        }
    }
}

/// The system's allocator, which charges the account of a sandbox's thread.
struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

// A `Layout` holds at most isize::MAX bytes.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ACCOUNT.with(|account| account.charge(layout.size() as i64, 1));
        or_end(System.alloc(layout))
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ACCOUNT.with(|account| account.charge(layout.size() as i64, 1));
        or_end(System.alloc_zeroed(layout))
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ACCOUNT.with(|account| account.charge(new_size as i64 - layout.size() as i64, 0));
        or_end(System.realloc(block, layout, new_size))
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        System.dealloc(block, layout);
        ACCOUNT.with(|account| account.refund(layout.size() as i64, 1));
    }
}

/// Ends the program with its sentence and exit code for such cases (docs/cli.md) if the system refused
/// memory; Rust itself would abort.
fn or_end(block: *mut u8) -> *mut u8 {
    const SENTENCE: &str = "tandem: memory ran out; see what `ulimit -v` and the container allow\n";
    const REFUSED_BY_SYSTEM: i32 = 5;
    if block.is_null() {
        // Neither needs memory.
        unsafe {
            libc::write(2, SENTENCE.as_ptr().cast(), SENTENCE.len());
            libc::_exit(REFUSED_BY_SYSTEM);
        }
    }
    block
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const ALLOWED: Allowance = Allowance {
        input: "text",
        bytes: 1 << 20,
        stops_at_blocks: true,
        time: Duration::from_secs(10),
    };

    #[test]
    fn what_is_freed_may_be_used_again() {
        let run = run(ALLOWED, &Arc::default(), || {
            Ok((0..100).map(|_| vec![1u8; 3 << 20].len()).sum::<usize>())
        });
        assert_eq!(run.unwrap(), 300 << 20);
    }

    #[test]
    fn check_refuses_long_before_the_allocator() {
        run(ALLOWED, &Arc::default(), || {
            assert!(check(1 << 19, 1 << 15).is_ok());
            assert!(check(2 << 20, 0).is_err());
            assert!(check(0, 1 << 17).is_err());
            let held = vec![1u8; 3 << 20];
            assert!(check(1, 0).is_err());
            drop(held);
            let held: Vec<_> = (0..1 << 16).map(Box::new).collect();
            assert!(check(0, 1).is_err());
            drop(held);
            check(1, 1)
        })
        .unwrap();
        assert!(check(usize::MAX, 0).is_ok(), "nothing is counted outside");
    }

    #[test]
    fn what_is_held_is_known() {
        assert_eq!(bytes_held(), 0);
        let held = run(ALLOWED, &Arc::default(), || {
            let before = bytes_held();
            let data = vec![1u8; 1 << 16];
            let held = bytes_held() - before;
            drop(data);
            Ok((held, bytes_held() - before))
        });
        assert_eq!(held.unwrap(), (1 << 16, 0));
    }

    #[test]
    fn what_a_thread_owns_is_known_everywhere() {
        let before = bytes_owned();
        let data = vec![1u8; 1 << 16];
        assert_eq!(bytes_owned() - before, 1 << 16);
        drop(data);
        assert_eq!(bytes_owned(), before);
    }

    #[test]
    fn panics_are_errors() {
        let run = run(ALLOWED, &Arc::default(), || -> Result<()> { panic!("oh") });
        assert!(run.unwrap_err().message.contains("oh"));
    }

    #[test]
    fn work_over_its_time_may_not_allocate_for_ever() {
        let allowed = Allowance {
            time: Duration::from_millis(1),
            ..ALLOWED
        };
        let strays = Arc::new(Strays::default());
        let ended = run(allowed, &strays, || -> Result<()> {
            loop {
                std::hint::black_box(Box::new(0));
            }
        });
        assert_eq!(ended.unwrap_err().code, ErrorCode::ResourceExhausted);
        assert_eq!(strays.count(), 1);
    }

    #[test]
    fn work_over_its_time_steps_back_behind_all_else() {
        let allowed = Allowance {
            time: Duration::from_millis(1),
            ..ALLOWED
        };
        let (done, is_done) = mpsc::channel::<()>();
        let ended = run(allowed, &Arc::default(), move || {
            while unsafe { libc::sched_getscheduler(0) } != libc::SCHED_IDLE {
                std::hint::spin_loop();
            }
            drop(done);
            Ok(())
        });
        assert_eq!(ended.unwrap_err().code, ErrorCode::ResourceExhausted);
        assert!(is_done.recv().is_err());
    }

    #[test]
    fn work_over_its_time_gives_its_place_back_when_it_ends() {
        let allowed = Allowance {
            time: Duration::from_millis(1),
            ..ALLOWED
        };
        let strays = Arc::new(Strays::default());
        // More often than there are places.
        for _ in 0..=MAX_STRAYS {
            let (done, is_done) = mpsc::channel::<()>();
            let ended = run(allowed, &strays, move || {
                // The work ends because the caller has gone.
                while check(0, 0).is_ok() {
                    std::hint::spin_loop();
                }
                drop(done);
                Ok(())
            });
            assert_eq!(ended.unwrap_err().code, ErrorCode::ResourceExhausted);
            assert!(is_done.recv().is_err());
        }
    }
}
