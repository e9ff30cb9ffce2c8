#define _GNU_SOURCE
#include "image.h"

#include <ctype.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>

enum { FATBIN_MAGIC = 0xba55ed50, WRAPPER_MAGIC = 0x466243b1 };

struct fatbin {
	uint32_t magic;
	uint16_t version, header_size;
	uint64_t size;
};

struct wrapper {
	uint32_t magic, version;
	const void *data;
	void *unused;
};

static bool image_is_word(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$'; }

/* One `.global .u32 name[count];` or `.global .align 4 .b8 name[count];`. Returns
 * where the declaration ends. */
static const char *image_read_global(const char *at, char *name, size_t name_size, uint64_t *bytes, bool *managed)
{
	static const char MANAGED[] = ".attribute(.managed)";
	const char *end = at + strcspn(at, ";={");
	const char *bracket = memchr(at, '[', (size_t)(end - at));
	const char *stop = bracket != NULL ? bracket : end;
	const char *start, *type = NULL;
	uint64_t count = bracket != NULL ? strtoull(bracket + 1, NULL, 10) : 1;
	size_t len;

	while (stop > at && !image_is_word(stop[-1]))
		stop--;
	for (start = stop; start > at && image_is_word(start[-1]); start--) {
	}
	for (const char *p = at; p < start; p++)
		if (*p == '.' && strchr("usfb", p[1]) != NULL && isdigit((unsigned char)p[2]))
			type = p + 2;
	*managed = memmem(at, (size_t)(end - at), MANAGED, strlen(MANAGED)) != NULL;
	len = (size_t)(stop - start);
	if (type == NULL || len == 0 || len >= name_size)
		return end;
	memcpy(name, start, len);
	name[len] = '\0';
	*bytes = count * (strtoull(type, NULL, 10) / 8);
	return end;
}

/* The size of the named variable, or of all where there is no name. */
static uint64_t image_sum_globals(const char *text, const char *wanted, bool managed)
{
	uint64_t sum = 0;
	for (const char *at = text; (at = strstr(at, ".global")) != NULL;) {
		char name[256] = "";
		uint64_t bytes = 0;
		bool is_managed;
		at = image_read_global(at + strlen(".global"), name, sizeof name, &bytes, &is_managed);
		if (is_managed == managed && (wanted == NULL || strcmp(name, wanted) == 0))
			sum += bytes;
	}
	return sum;
}

static uint64_t image_elf_size(const Elf64_Ehdr *e)
{
	uint64_t sections = e->e_shoff + (uint64_t)e->e_shnum * e->e_shentsize;
	uint64_t programs = e->e_phoff + (uint64_t)e->e_phnum * e->e_phentsize;
	return sections > programs ? sections : programs;
}

bool image_read(const void *data, struct image *out)
{
	uint32_t magic;
	const char *text = data;

	*out = (struct image){0};
	memcpy(&magic, data, sizeof magic);
	if (magic == WRAPPER_MAGIC) {
		data = ((const struct wrapper *)data)->data;
		memcpy(&magic, data, sizeof magic);
	}
	if (magic == FATBIN_MAGIC) {
		struct fatbin f;
		memcpy(&f, data, sizeof f);
		out->size = f.header_size + f.size;
		return true;
	}
	if (memcmp(&magic, ELFMAG, SELFMAG) == 0) {
		out->size = image_elf_size(data);
		return true;
	}
	while (isspace((unsigned char)*text))
		text++;
	if (strncmp(text, ".version", 8) != 0 && strncmp(text, "//", 2) != 0)
		return false;
	*out = (struct image){true, text, strlen(text), image_sum_globals(text, NULL, false)};
	return true;
}

bool image_has_kernel(const struct image *i, const char *name)
{
	size_t len = strlen(name);
	if (!i->is_text)
		return true;
	for (const char *at = i->text; (at = strstr(at, ".entry")) != NULL;) {
		at += strlen(".entry");
		at += strspn(at, " \t\n");
		if (strncmp(at, name, len) == 0 && !image_is_word(at[len]))
			return true;
	}
	return false;
}

bool image_allocates(const struct image *i) { return i->is_text && strstr(i->text, "malloc") != NULL; }

uint64_t image_variable(const struct image *i, const char *name, bool managed)
{
	return i->is_text ? image_sum_globals(i->text, name, managed) : 0;
}
