//! The allocator of a component: hands out memory once and gives it back with the instance.
//!
//! Every call gets a fresh instance, so what is freed need not be found again. Blocks come from a static arena that
//! is part of the initial memory: a common call never grows the memory, which is what costs (a system call, and
//! pages that the host's pool cannot keep). Only the last block is reused or grown in place, as when a `String` is
//! written.
#![allow(unsafe_code, reason = "a global allocator is unsafe by nature; wasm32 has one thread")]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::{Cell, UnsafeCell};
use core::ptr;

/// Fresh instance, 3.4 KB object, two children: a quarter less time per call than with the standard allocator, and
/// 64 KiB are no faster, while an object of 36 KB then has to grow the memory (+15 %).
///
/// Together with a stack of 64 KiB and the data of an ordinary plugin less than the 256 KiB that the host keeps
/// resident; an object of 36 KB with its plan fits.
const ARENA: usize = 128 * 1024;
const PAGE: usize = 64 * 1024;
/// Growing in steps of 1 MiB: a call that needs more than the arena usually needs a lot more.
const STEP: usize = 16;

#[global_allocator]
static ALLOCATOR: Bump = Bump { arena: UnsafeCell::new([0; ARENA]), next: Cell::new(0), end: Cell::new(0) };

struct Bump {
    arena: UnsafeCell<[u8; ARENA]>,
    /// Where the next block may start; 0 before the first.
    next: Cell<usize>,
    /// Where the current region ends.
    end: Cell<usize>,
}

// SAFETY: wasm32 without atomics has one thread.
unsafe impl Sync for Bump {}

impl Bump {
    /// Takes `size` bytes from the current region, if they fit.
    fn take(&self, start: usize, size: usize) -> bool {
        match start.checked_add(size) {
            Some(next) if next <= self.end.get() => {
                self.next.set(next);
                true
            }
            _ => false,
        }
    }

    /// Adds at least `size` bytes of new memory; false if the host gives no more.
    fn grow(&self, size: usize) -> bool {
        let needed = size.div_ceil(PAGE);
        for pages in [needed.max(STEP), needed] {
            let old = core::arch::wasm32::memory_grow::<0>(pages);
            if old == usize::MAX {
                continue;
            }
            let start = old * PAGE;
            // Memory that continues the region keeps what is left of it, and the last block can grow into it.
            if start != self.end.get() {
                self.next.set(start);
            }
            self.end.set(start + pages * PAGE);
            return true;
        }
        false
    }
}

// SAFETY: blocks are aligned, inside of the arena or of memory this allocator grew, and overlap no other live block,
// because `next` moves back only over the last one.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if self.end.get() == 0 {
            let start = self.arena.get() as usize;
            self.next.set(start);
            self.end.set(start + ARENA);
        }
        loop {
            let start = self.next.get().next_multiple_of(layout.align());
            if self.take(start, layout.size()) {
                return start as *mut u8;
            }
            let Some(size) = layout.size().checked_add(layout.align()) else { return ptr::null_mut() };
            if !self.grow(size) {
                return ptr::null_mut();
            }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if block as usize + layout.size() == self.next.get() {
            self.next.set(block as usize);
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let is_last = block as usize + layout.size() == self.next.get();
        if is_last && self.take(block as usize, size) {
            return block;
        }
        if size <= layout.size() {
            return block;
        }
        // SAFETY: the caller's promises for `size` are those of `alloc`, and the new block is at least as long.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                ptr::copy_nonoverlapping(block, new, layout.size());
            }
            new
        }
    }
}
