// Asks for the oldest version of the C library's symbols, where it gave them a newer
// one without a change of what they do: when it took libpthread and libdl into itself,
// in 2.34, or made them visible to programs that need no threads, in 2.32. A program
// that is built with -include of this file, and linked as flags.mk says, runs with
// every glibc from 2.17 on, whatever this machine has.
#pragma once

#ifndef __ASSEMBLER__

#if defined(__x86_64__)
#define GLIBC_FIRST "GLIBC_2.2.5"
#define GLIBC_CANCEL "GLIBC_2.3.3"
#define GLIBC_ROBUST "GLIBC_2.12"
#elif defined(__aarch64__)
#define GLIBC_FIRST "GLIBC_2.17"
#define GLIBC_CANCEL "GLIBC_2.17"
#define GLIBC_ROBUST "GLIBC_2.17"
#else
#error "which version of its symbols had this processor's first glibc?"
#endif

#define GLIBC_SYMBOL(name, version) __asm__(".symver " #name "," #name "@" version)

GLIBC_SYMBOL(dladdr, GLIBC_FIRST);
GLIBC_SYMBOL(dlclose, GLIBC_FIRST);
GLIBC_SYMBOL(dlerror, GLIBC_FIRST);
GLIBC_SYMBOL(dlopen, GLIBC_FIRST);
GLIBC_SYMBOL(dlsym, GLIBC_FIRST);
GLIBC_SYMBOL(dlvsym, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_attr_getstack, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_attr_getstacksize, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_barrier_destroy, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_barrier_init, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_barrier_wait, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_create, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_detach, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_getattr_np, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_join, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_key_create, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_mutex_consistent, GLIBC_ROBUST);
GLIBC_SYMBOL(pthread_mutex_trylock, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_mutexattr_destroy, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_mutexattr_init, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_mutexattr_setpshared, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_mutexattr_setrobust, GLIBC_ROBUST);
GLIBC_SYMBOL(pthread_once, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_rwlock_rdlock, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_rwlock_unlock, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_rwlock_wrlock, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_setspecific, GLIBC_FIRST);
GLIBC_SYMBOL(pthread_sigmask, GLIBC_FIRST);
GLIBC_SYMBOL(__pthread_register_cancel, GLIBC_CANCEL);
GLIBC_SYMBOL(__pthread_unregister_cancel, GLIBC_CANCEL);
GLIBC_SYMBOL(__pthread_unwind_next, GLIBC_CANCEL);

#endif
