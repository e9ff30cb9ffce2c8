#include "elf.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>

/* elf_at returns an address of the dynamic section. The linker has turned most of these
 * into addresses already; where it has not (the kernel's own object, other C libraries)
 * they are offsets. */
static const void *elf_at(const struct elf_object *o, uint64_t value) { return (const void *)(value < o->base ? value + o->base : value); }

/* elf_same is strcmp, which may be a sanitizer's, and not ready yet. */
static bool elf_same(const char *a, const char *b)
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

/* elf_defined returns the address if symbol i is a definition of name, or NULL; hidden is
 * set where another version is the default. */
static void *elf_defined(const struct elf_object *o, uint32_t i, const char *name, bool *hidden)
{
	const ElfW(Sym) *s = (const ElfW(Sym) *)o->symbols + i;
	unsigned type = ELF64_ST_TYPE(s->st_info), bind = ELF64_ST_BIND(s->st_info);
	if (s->st_shndx == SHN_UNDEF || (bind != STB_GLOBAL && bind != STB_WEAK) ||
	    (type != STT_FUNC && type != STT_NOTYPE && type != STT_OBJECT) || !elf_same(o->strings + s->st_name, name))
		return NULL;
	*hidden = o->versions && (o->versions[i] & 0x8000);
	return (void *)(o->base + s->st_value);
}

static void *elf_by_gnu_hash(const struct elf_object *o, const char *name)
{
	const uint32_t *table = o->gnu_hash;
	uint32_t buckets = table[0], first = table[1], bloom = table[2];
	const uint32_t *bucket = table + 4 + bloom * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
	uint32_t hash = 5381;
	void *fallback = NULL;
	for (const char *c = name; *c; c++)
		hash = hash * 33 + (unsigned char)*c;
	uint32_t i = buckets ? bucket[hash % buckets] : 0;
	for (; i >= first && i != 0; i++) {
		bool hidden;
		void *found;
		if ((chain[i - first] | 1) == (hash | 1) && (found = elf_defined(o, i, name, &hidden))) {
			if (!hidden)
				return found;
			fallback = found;
		}
		if (chain[i - first] & 1)
			break;
	}
	return fallback;
}

static void *elf_by_walking(const struct elf_object *o, const char *name)
{
	void *fallback = NULL;
	for (uint32_t i = 0; i < o->sysv_hash[1]; i++) {
		bool hidden;
		void *found = elf_defined(o, i, name, &hidden);
		if (found && !hidden)
			return found;
		if (found)
			fallback = found;
	}
	return fallback;
}

void *elf_symbol(const struct elf_object *o, const char *name)
{
	return o->gnu_hash ? elf_by_gnu_hash(o, name) : o->sysv_hash ? elf_by_walking(o, name) : NULL;
}

void *elf_next(const char *name)
{
	struct elf_object o;
	bool past = false;
	for (const struct link_map *m = _r_debug.r_map; m; m = m->l_next) {
		void *found = past && elf_read(m->l_addr, m->l_name, m->l_ld, &o) ? elf_symbol(&o, name) : NULL;
		if (found)
			return found;
		past |= m->l_ld == _DYNAMIC; /* each object's own, by the linker's name for it */
	}
	return NULL;
}
