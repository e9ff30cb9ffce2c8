// The start of a program, for every glibc from 2.17 on. What the compiler links into a
// program calls __libc_start_main in the version of this machine's C library, which
// since 2.34 calls a program's constructors itself. Older ones are handed a function for
// it, and do not call them without. So this one stands in front of it.
#include "symver.h"

typedef void initialiser(int, char **, char **);

extern initialiser *__init_array_start[] __attribute__((visibility("hidden")));
extern initialiser *__init_array_end[] __attribute__((visibility("hidden")));

int glibc_start_main(int (*main)(int, char **, char **), int argc, char **argv, initialiser *init, void (*fini)(void),
		     void (*rtld_fini)(void), void *stack_end);
__asm__(".symver glibc_start_main,__libc_start_main@" GLIBC_FIRST);

int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, initialiser *init, void (*fini)(void),
		      void (*rtld_fini)(void), void *stack_end);

// Those of preinit_array are the dynamic linker's to call.
static void start_init(int argc, char **argv, char **environment)
{
	for (initialiser **call = __init_array_start; call < __init_array_end; call++)
		(*call)(argc, argv, environment);
}

// Destructors are called by the dynamic linker, in rtld_fini, where there is no fini.
__attribute__((visibility("hidden"))) int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, initialiser *init,
							    void (*fini)(void), void (*rtld_fini)(void), void *stack_end)
{
	(void)init;
	(void)fini;
	return glibc_start_main(main, argc, argv, start_init, 0, rtld_fini, stack_end);
}
