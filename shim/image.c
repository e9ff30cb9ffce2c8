#include "image.h"

#include <elf.h>
#include <stdbool.h>
#include <string.h>

static bool image_is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* image_skip skips white space and comments of PTX. */
static const char *image_skip(const char *at)
{
	for (;;) {
		while (image_is_space(*at))
			at++;
		if (at[0] == '/' && at[1] == '/') {
			at += strcspn(at, "\n");
		} else if (at[0] == '/' && at[1] == '*') {
			const char *end = strstr(at + 2, "*/");
			at = end ? end + 2 : at + strlen(at);
		} else {
			return at;
		}
	}
}

/* image_word reports whether the PTX at *at begins with this word. If so, it moves *at behind
 * the word. */
static bool image_word(const char **at, const char *word)
{
	size_t n = strlen(word);
	if (strncmp(*at, word, n) != 0 || !(image_is_space((*at)[n]) || (*at)[n] == '/'))
		return false;
	*at = image_skip(*at + n);
	return true;
}

/* image_number returns the decimal number at `at`. It returns 0 if there is no number, or if it
 * is too large to be a size. */
static uint64_t image_number(const char *at)
{
	uint64_t n = 0;
	for (; *at >= '0' && *at <= '9'; at++)
		if ((n = n * 10 + (unsigned)(*at - '0')) > UINT64_C(1) << 48)
			return 0;
	return n;
}

/* image_declared returns the size of a variable in bytes, or 0 if it is not known. at is behind
 * .global: [.attribute(...)] [.align N] .TYPE NAME [COUNT]... */
static uint64_t image_declared(const char *at)
{
	const char *end = at + strcspn(at, ";={");
	uint64_t bytes = 0;
	for (const char *p = at; p < end; p++) {
		if (*p == '.' && strncmp(p, ".attribute", 10) == 0)
			return 0; /* managed */
		if (*p == '.' && strchr("usfb", p[1]) && p[1] && image_number(p + 2))
			bytes = image_number(p + 2) / 8;
		if (*p == '[' && __builtin_mul_overflow(bytes, image_number(image_skip(p + 1)), &bytes))
			return 0;
	}
	return bytes;
}

/* image_ptx adds up the bytes of the variables of PTX that are visible to other code: the
 * driver never removes those. Only text outside functions is read. It returns 0 if the sum
 * overflows. */
static uint64_t image_ptx(const char *at)
{
	uint64_t sum = 0;
	unsigned depth = 0;
	for (at = image_skip(at); *at; at = image_skip(at)) {
		if (depth == 0 && image_word(&at, ".visible") && image_word(&at, ".global")) {
			if (__builtin_add_overflow(sum, image_declared(at), &sum))
				return 0;
			continue;
		}
		depth += *at == '{';
		depth -= *at == '}' && depth > 0;
		if (*at == '"')
			at += strcspn(at + 1, "\"\n") + 1;
		at += *at != '\0';
	}
	return sum;
}

/* image_cubin adds up the bytes of the sections that hold variables. */
static uint64_t image_cubin(const Elf64_Ehdr *e)
{
	const char *base = (const char *)e;
	const Elf64_Shdr *sections = (const Elf64_Shdr *)(base + e->e_shoff);
	uint64_t sum = 0;
	if (e->e_ident[EI_CLASS] != ELFCLASS64 || e->e_machine != EM_CUDA || !e->e_shoff || e->e_shentsize != sizeof *sections ||
	    e->e_shstrndx >= e->e_shnum)
		return 0;
	const char *names = base + sections[e->e_shstrndx].sh_offset;
	for (unsigned i = 0; i < e->e_shnum; i++) {
		const char *name = names + sections[i].sh_name;
		if (strcmp(name, ".nv.global") == 0 || strcmp(name, ".nv.global.init") == 0)
			sum += sections[i].sh_size;
	}
	return sum;
}

uint64_t image_variables(const void *image)
{
	const char *text = image;
	if (!image)
		return 0;
	if (strncmp(text, ELFMAG, SELFMAG) == 0) /* memcmp may read behind the end of a short text */
		return image_cubin(image);
	text = image_skip(text);
	return strncmp(text, ".version", 8) == 0 ? image_ptx(text) : 0;
}
