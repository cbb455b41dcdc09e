/* fault: calls into the C library that can be made to fail, for the torture tests only.
 *
 * fault.c defines malloc, open, read and their like in the program itself; the libraries that it uses, and
 * libc, then call those too. Nothing of this is in the product. A count is kept of the blocks that live. */
#ifndef IG_FAULT_H
#define IG_FAULT_H

#include <stdbool.h>

typedef enum fault_kind {
    FAULT_MEMORY, /* no memory: malloc and its like, anonymous mmap, pthread_create */
    FAULT_EIO,
    FAULT_ENOSPC,
    FAULT_EINTR,
    FAULT_SHORT, /* read, pread and write do one byte */
    FAULT_KINDS
} fault_kind;

/* The n-th call of the kind from now on fails (n from 1), and with `sticky` all after it. n 0: calls are
 * counted only. */
void fault_arm(fault_kind kind, long n, bool sticky);
/* Returns how many calls of the kind there were since. */
long fault_disarm(void);
bool fault_came(void); /* since fault_arm */
bool fault_in_template(void); /* on a thread of the template engine: it is stopped there, with what it holds */
long fault_live(void); /* blocks of memory that are not freed */
void fault_exempt(bool on); /* this thread's calls neither count nor fail */
void fault_print(void);     /* where the first one came from, on stderr */

#endif
