/* Finds symbols in the loaded objects without calling the dynamic linker: this library exports
 * its own dlsym, and must find the real one. */
#ifndef RATION_ELF_H
#define RATION_ELF_H

#include <stdbool.h>
#include <stdint.h>

struct elf_object {
	uintptr_t base;
	const char *path, *soname; /* soname may be NULL */
	const void *symbols;
	const char *strings;
	const uint32_t *gnu_hash, *sysv_hash;
	const uint16_t *versions;
	const void *relocations[2]; /* their sizes in bytes are in relocations_size */
	uint64_t relocations_size[2];
};

/* elf_find calls match with each loaded object, in load order, until match returns true. It
 * returns whether match did. match must not load or unload an object. */
bool elf_find(bool (*match)(const struct elf_object *o, bool holds, void *arg), const void *address, void *arg);

/* elf_named finds the object with this soname. It returns false if none is loaded. */
bool elf_named(const char *soname, struct elf_object *out);

/* elf_first does the same for objects that were loaded at program start and are never unloaded.
 * It calls no other function, so it works before other libraries are initialised. */
bool elf_first(const char *soname, struct elf_object *out);

/* elf_same reports whether two strings are equal. It is used where strcmp may belong to a sanitizer that
 * is not ready yet. */
bool elf_same(const char *a, const char *b);

/* elf_own finds this library. Like elf_first, it calls no other function. */
bool elf_own(struct elf_object *out);

/* elf_symbol returns the address of a symbol that o itself defines, or NULL. If there are
 * several versions, it returns the default one. */
void *elf_symbol(const struct elf_object *o, const char *name);

/* elf_function does the same for functions. It returns NULL for a function that the dynamic
 * linker chooses for the kind of processor (IFUNC). */
void *elf_function(const struct elf_object *o, const char *name);

/* elf_redirect changes the symbol table of o so that every later lookup of a symbol, in any of its
 * versions, and also by the dynamic linker, finds the address `to`. elf_rebind goes through the references of the
 * loaded objects that name a symbol. It calls choose with the name and the address to which the
 * reference is bound, and binds the reference to the address that choose returns. own selects
 * this library's own references, otherwise all others. elf_rebind_in goes through those of one
 * object. All of them write to memory that normally only the dynamic linker writes. */
bool elf_redirect(const struct elf_object *o, const char *name, const void *to);
void elf_rebind_in(const struct elf_object *o, void *(*choose)(const char *name, void *bound));
void elf_rebind(bool own, void *(*choose)(const char *name, void *bound));

/* elf_trust_libc binds this library's references to the C library's own functions, even if
 * another preloaded library has functions of the same names. It is safe to call twice. */
void elf_trust_libc(void);

/* elf_before reports whether the object with this soname comes before this library in lookups.
 * Like elf_first, it calls no other function. */
bool elf_before(const char *soname);

/* elf_next returns the address of a symbol in the first object after this library: the address
 * to which the program would have bound without this library. Like elf_first, it calls no other
 * function. */
void *elf_next(const char *name);

#endif
