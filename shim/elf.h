/* Looking things up in the objects the dynamic linker has loaded, without asking
 * it for symbols: the library must find the real dlsym behind its own. */
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
	const void *relocations[2]; /* with what follows in bytes */
	uint64_t relocations_size[2];
};

/* elf_find calls match with each loaded object in load order until it returns
 * true, and says whether it did. match must not load or unload anything. */
bool elf_find(bool (*match)(const struct elf_object *o, bool holds, void *arg), const void *address, void *arg);

/* elf_named finds the object with this soname. */
bool elf_named(const char *soname, struct elf_object *out);

/* elf_first is the same for objects that were there from the start and never go:
 * it calls nothing, so that it works before other libraries are ready for that. */
bool elf_first(const char *soname, struct elf_object *out);

/* elf_symbol is the address of a symbol that o itself defines, in its default
 * version where there are several; NULL if there is none. */
void *elf_symbol(const struct elf_object *o, const char *name);

/* elf_function is the same for functions, without those of which several exist, one for each kind
 * of processor. */
void *elf_function(const struct elf_object *o, const char *name);

/* elf_redirect makes every later lookup of a symbol that o defines find another address, by the
 * dynamic linker too; elf_rebind calls choose with each reference of the loaded objects that names a
 * symbol, with what it is bound to, and binds it to the answer. own: only this library's own
 * references, otherwise only others'. Both write where only the dynamic linker does. */
bool elf_redirect(const struct elf_object *o, const char *name, const void *to);
void elf_rebind(bool own, void *(*choose)(const char *name, void *bound));

/* elf_trust_libc binds this library's references to the C library's own functions, whatever else was
 * preloaded before it with functions of the same names. Safe to do twice. */
void elf_trust_libc(void);

/* elf_before reports whether the object with this soname comes before this library in lookups. Like
 * elf_first. */
bool elf_before(const char *soname);

/* elf_next is the address of a symbol in the first object behind the one that this is part
 * of: what the program would have bound to without us. Like elf_first. */
void *elf_next(const char *name);

#endif
