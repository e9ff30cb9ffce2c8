#include "elf.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "region/kernel.h"

/* elf_at returns an address from the dynamic section. The dynamic linker has already turned
 * most values into addresses. In the kernel's own object, and with other C libraries, they are
 * still offsets. */
static const void *elf_at(const struct elf_object *o, uint64_t value) { return (const void *)(value < o->base ? value + o->base : value); }

bool elf_same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static bool elf_read(uintptr_t base, const char *path, const ElfW(Dyn) * d, struct elf_object *o)
{
	uint64_t soname = 0;
	*o = (struct elf_object){.base = base, .path = path};
	if (!d)
		return false;
	for (; d->d_tag != DT_NULL; d++) {
		switch (d->d_tag) {
		case DT_SYMTAB: o->symbols = elf_at(o, d->d_un.d_ptr); break;
		case DT_STRTAB: o->strings = elf_at(o, d->d_un.d_ptr); break;
		case DT_GNU_HASH: o->gnu_hash = elf_at(o, d->d_un.d_ptr); break;
		case DT_HASH: o->sysv_hash = elf_at(o, d->d_un.d_ptr); break;
		case DT_VERSYM: o->versions = elf_at(o, d->d_un.d_ptr); break;
		case DT_SONAME: soname = d->d_un.d_val; break;
		case DT_RELA: o->relocations[0] = elf_at(o, d->d_un.d_ptr); break;
		case DT_RELASZ: o->relocations_size[0] = d->d_un.d_val; break;
		case DT_JMPREL: o->relocations[1] = elf_at(o, d->d_un.d_ptr); break;
		case DT_PLTRELSZ: o->relocations_size[1] = d->d_un.d_val; break;
		}
	}
	if (!o->symbols || !o->strings)
		return false;
	o->soname = soname ? o->strings + soname : NULL;
	return true;
}

static bool elf_holds(const struct dl_phdr_info *info, const void *address)
{
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		if (p->p_type == PT_LOAD && (uintptr_t)address - (info->dlpi_addr + p->p_vaddr) < p->p_memsz)
			return true;
	}
	return false;
}

struct elf_search {
	bool (*match)(const struct elf_object *o, bool holds, void *arg);
	const void *address;
	void *arg;
};

static int elf_visit(struct dl_phdr_info *info, size_t size, void *arg)
{
	const struct elf_search *s = arg;
	const ElfW(Dyn) *d = NULL;
	struct elf_object o;
	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			d = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	return elf_read(info->dlpi_addr, info->dlpi_name, d, &o) && s->match(&o, s->address && elf_holds(info, s->address), s->arg);
}

bool elf_find(bool (*match)(const struct elf_object *o, bool holds, void *arg), const void *address, void *arg)
{
	struct elf_search s = {match, address, arg};
	return dl_iterate_phdr(elf_visit, &s) != 0;
}

struct elf_named {
	const char *soname;
	struct elf_object *out;
};

static bool elf_is_named(const struct elf_object *o, bool holds, void *arg)
{
	struct elf_named *n = arg;
	(void)holds;
	if (!o->soname || !elf_same(o->soname, n->soname))
		return false;
	*n->out = *o;
	return true;
}

bool elf_named(const char *soname, struct elf_object *out)
{
	struct elf_named n = {soname, out};
	return elf_find(elf_is_named, NULL, &n);
}

bool elf_first(const char *soname, struct elf_object *out)
{
	for (const struct link_map *m = _r_debug.r_map; m; m = m->l_next)
		if (elf_read(m->l_addr, m->l_name, m->l_ld, out) && out->soname && elf_same(out->soname, soname))
			return true;
	return false;
}

bool elf_own(struct elf_object *out)
{
	for (const struct link_map *m = _r_debug.r_map; m; m = m->l_next)
		if (m->l_ld == _DYNAMIC) /* it identifies this library in the linker's list */
			return elf_read(m->l_addr, m->l_name, m->l_ld, out);
	return false;
}

/* elf_defined returns symbol i if it is a definition of name with another value than `except`, or
 * NULL. It sets *hidden if another version is the default. */
static const ElfW(Sym) * elf_defined(const struct elf_object *o, uint32_t i, const char *name, uint64_t except, bool *hidden)
{
	const ElfW(Sym) *s = (const ElfW(Sym) *)o->symbols + i;
	unsigned type = ELF64_ST_TYPE(s->st_info), bind = ELF64_ST_BIND(s->st_info);
	if (s->st_shndx == SHN_UNDEF || s->st_value == except || (bind != STB_GLOBAL && bind != STB_WEAK) ||
	    (type != STT_FUNC && type != STT_NOTYPE && type != STT_OBJECT) || !elf_same(o->strings + s->st_name, name))
		return NULL;
	*hidden = o->versions && (o->versions[i] & 0x8000);
	return s;
}

static const ElfW(Sym) * elf_by_gnu_hash(const struct elf_object *o, const char *name, uint64_t except)
{
	const uint32_t *table = o->gnu_hash;
	uint32_t buckets = table[0], first = table[1], bloom = table[2];
	const uint32_t *bucket = table + 4 + bloom * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
	uint32_t hash = 5381;
	const ElfW(Sym) *fallback = NULL;
	for (const char *c = name; *c; c++)
		hash = hash * 33 + (unsigned char)*c;
	uint32_t i = buckets ? bucket[hash % buckets] : 0;
	for (; i >= first && i != 0; i++) {
		bool hidden;
		const ElfW(Sym) * found;
		if ((chain[i - first] | 1) == (hash | 1) && (found = elf_defined(o, i, name, except, &hidden))) {
			if (!hidden)
				return found;
			fallback = found;
		}
		if (chain[i - first] & 1)
			break;
	}
	return fallback;
}

static const ElfW(Sym) * elf_by_walking(const struct elf_object *o, const char *name, uint64_t except)
{
	const ElfW(Sym) *fallback = NULL;
	for (uint32_t i = 0; i < o->sysv_hash[1]; i++) {
		bool hidden;
		const ElfW(Sym) *found = elf_defined(o, i, name, except, &hidden);
		if (found && !hidden)
			return found;
		if (found)
			fallback = found;
	}
	return fallback;
}

static const ElfW(Sym) * elf_entry_except(const struct elf_object *o, const char *name, uint64_t except)
{
	return o->gnu_hash ? elf_by_gnu_hash(o, name, except) : o->sysv_hash ? elf_by_walking(o, name, except) : NULL;
}

static const ElfW(Sym) * elf_entry(const struct elf_object *o, const char *name) { return elf_entry_except(o, name, 0); }

void *elf_symbol(const struct elf_object *o, const char *name)
{
	const ElfW(Sym) *s = elf_entry(o, name);
	return s ? (void *)(o->base + s->st_value) : NULL;
}

void *elf_function(const struct elf_object *o, const char *name)
{
	const ElfW(Sym) *s = elf_entry(o, name);
	return s && ELF64_ST_TYPE(s->st_info) == STT_FUNC ? (void *)(o->base + s->st_value) : NULL;
}

bool elf_before(const char *soname)
{
	struct elf_object o;
	for (const struct link_map *m = _r_debug.r_map; m && m->l_ld != _DYNAMIC; m = m->l_next)
		if (elf_read(m->l_addr, m->l_name, m->l_ld, &o) && o.soname && elf_same(o.soname, soname))
			return true;
	return false;
}

/* A word of a loaded object that is to be written. */
struct elf_store {
	uintptr_t at;
	uint64_t value;
	bool done;
};

/* elf_store_in writes the word, if this object contains it, and restores the protection that
 * the dynamic linker gave its page. */
static int elf_store_in(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct elf_store *s = arg;
	int flags = -1;
	bool read_only = false;
	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		if (s->at - (info->dlpi_addr + p->p_vaddr) >= p->p_memsz)
			continue;
		if (p->p_type == PT_LOAD)
			flags = (p->p_flags & PF_R ? PROT_READ : 0) | (p->p_flags & PF_W ? PROT_WRITE : 0) |
				(p->p_flags & PF_X ? PROT_EXEC : 0);
		read_only |= p->p_type == PT_GNU_RELRO;
	}
	if (flags < 0)
		return 0;
	if (read_only)
		flags &= ~PROT_WRITE;
	long size_of_page = sysconf(_SC_PAGESIZE), page = (long)s->at & -size_of_page;
	if (flags & PROT_WRITE || kernel_call(SYS_mprotect, page, size_of_page, flags | PROT_WRITE, 0, 0) == 0) {
		__atomic_store_n((uint64_t *)s->at, s->value, __ATOMIC_RELEASE);
		s->done = true;
	}
	if (!(flags & PROT_WRITE))
		kernel_call(SYS_mprotect, page, size_of_page, flags, 0, 0);
	return 1;
}

static bool elf_store(const void *at, uint64_t value)
{
	struct elf_store s = {(uintptr_t)at, value, false};
	dl_iterate_phdr(elf_store_in, &s);
	return s.done;
}

bool elf_redirect(const struct elf_object *o, const char *name, const void *to)
{
	const ElfW(Sym) * s;
	uint64_t value = (uint64_t)to - o->base;
	while ((s = elf_entry_except(o, name, value)))
		if (!elf_store(&s->st_value, value))
			return false;
	return true;
}

#if defined(__x86_64__)
static bool elf_is_reference(uint64_t type) { return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT || type == R_X86_64_64; }
#elif defined(__aarch64__)
static bool elf_is_reference(uint64_t type) { return type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT || type == R_AARCH64_ABS64; }
#endif

void elf_rebind_in(const struct elf_object *o, void *(*choose)(const char *name, void *bound))
{
	for (int table = 0; table < 2; table++) {
		const ElfW(Rela) *r = o->relocations[table];
		for (uint64_t n = r ? o->relocations_size[table] / sizeof *r : 0; n > 0; n--, r++) {
			const ElfW(Sym) *s = (const ElfW(Sym) *)o->symbols + ELF64_R_SYM(r->r_info);
			if (!elf_is_reference(ELF64_R_TYPE(r->r_info)) || !ELF64_R_SYM(r->r_info) || r->r_addend ||
			    s->st_shndx != SHN_UNDEF)
				continue;
			void **at = (void **)(o->base + r->r_offset), *bound = *at, *chosen = choose(o->strings + s->st_name, bound);
			if (chosen != bound)
				elf_store(at, (uint64_t)chosen);
		}
	}
}

void elf_rebind(bool own, void *(*choose)(const char *name, void *bound))
{
	struct elf_object o;
	for (const struct link_map *m = _r_debug.r_map; m; m = m->l_next)
		if (own == (m->l_ld == _DYNAMIC) && elf_read(m->l_addr, m->l_name, m->l_ld, &o))
			elf_rebind_in(&o, choose);
}

/* elf_of_libc returns the C library's own function of a name, or the present address if there
 * is none. */
static void *elf_of_libc(const char *name, void *bound)
{
	struct elf_object o;
	void *found = elf_first("libc.so.6", &o) ? elf_function(&o, name) : NULL;
	return found ? found : bound;
}

void elf_trust_libc(void)
{
	static int done;
	if (!__atomic_exchange_n(&done, 1, __ATOMIC_ACQ_REL))
		elf_rebind(true, elf_of_libc);
}

void *elf_next(const char *name)
{
	struct elf_object o;
	bool past = false;
	for (const struct link_map *m = _r_debug.r_map; m; m = m->l_next) {
		void *found = past && elf_read(m->l_addr, m->l_name, m->l_ld, &o) ? elf_symbol(&o, name) : NULL;
		if (found)
			return found;
		past |= m->l_ld == _DYNAMIC;
	}
	return NULL;
}
