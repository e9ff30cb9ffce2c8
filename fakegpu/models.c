#include "models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct model models[] = {
	{"h200", "NVIDIA H200", 143771, 629824, 518, 9, 0, 132, 0, NULL, 0},
	{"h100", "NVIDIA H100 80GB HBM3", 81559, 0, 300, 9, 0, 132, 0, NULL, 0},
	{"h100mig", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9984, 0, 300, 9, 0, 16, 7, "NVIDIA H100 80GB HBM3", 81559},
	{"a100", "NVIDIA A100-SXM4-40GB", 40960, 0, 300, 8, 0, 108, 0, NULL, 0},
	{"small", "NVIDIA Fake Small", 1024, 0, 300, 8, 6, 16, 0, NULL, 0},
};

int size_parse(const char *text, uint64_t *out)
{
	char *end;
	unsigned long long n = strtoull(text, &end, 10);
	unsigned shift = 0;

	if (end == text || *text == '-')
		return -1;
	switch (*end) {
	case 'k':
	case 'K': shift = 10; break;
	case 'm':
	case 'M': shift = 20; break;
	case 'g':
	case 'G': shift = 30; break;
	default: break;
	}
	if (shift != 0)
		end++;
	if (*end != '\0' || n > UINT64_MAX >> shift)
		return -1;
	*out = (uint64_t)n << shift;
	return 0;
}

static const struct model *model_find(const char *key, size_t len)
{
	for (size_t i = 0; i < sizeof models / sizeof *models; i++)
		if (strlen(models[i].key) == len && memcmp(models[i].key, key, len) == 0)
			return &models[i];
	return NULL;
}

int shape_parse(const char *text, struct shape *out)
{
	const char *rest = text + strcspn(text, "x:");
	const struct model *m = model_find(text, (size_t)(rest - text));
	unsigned long count = 1;
	uint64_t bytes;

	if (m == NULL)
		return -1;
	bytes = m->mib << 20;
	if (*rest == 'x') {
		char *end;
		count = strtoul(rest + 1, &end, 10);
		if (end == rest + 1 || count < 1 || count > MAX_DEVICES || model_gpu(m, (unsigned)count - 1) >= MAX_GPUS)
			return -1;
		rest = end;
	}
	/* The ledger counts up to 2^30 units of 512 bytes. */
	if (*rest == ':' && (size_parse(rest + 1, &bytes) != 0 || bytes < 1u << 20 || bytes > 1ull << 38))
		return -1;
	if (*rest != ':' && *rest != '\0')
		return -1;
	*out = (struct shape){m, (unsigned)count, bytes, *rest == ':' ? 0 : m->reserved << 10};
	return 0;
}

/* FNV-1a over the text, then one xorshift-multiply round per half. */
void model_uuid(const struct model *m, unsigned i, unsigned char out[16])
{
	uint64_t h = 14695981039346656037ull;
	for (const char *c = m->key; *c != '\0'; c++)
		h = (h ^ (unsigned char)*c) * 1099511628211ull;
	h = (h ^ (i + 1)) * 1099511628211ull;
	for (int half = 0; half < 2; half++) {
		h ^= h >> 29;
		h *= 0xbf58476d1ce4e5b9ull;
		h ^= h >> 32;
		for (int b = 0; b < 8; b++)
			out[half * 8 + b] = (unsigned char)(h >> (56 - 8 * b));
	}
}

void uuid_text(const unsigned char u[16], char out[UUID_TEXT])
{
	char *at = out + sprintf(out, "GPU-");
	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*at++ = '-';
		at += sprintf(at, "%02x", u[i]);
	}
}

void model_uuid_text(const struct model *m, unsigned i, char out[UUID_TEXT])
{
	unsigned char uuid[16];
	model_uuid(m, i, uuid);
	uuid_text(uuid, out);
	if (m->parts > 0)
		memcpy(out, "MIG", 3);
}

unsigned model_gpu(const struct model *m, unsigned i) { return m->parts > 0 ? i / m->parts : i; }

void model_gpu_uuid(const struct model *m, unsigned gpu, unsigned char out[16]) { model_uuid(m, MAX_DEVICES + gpu, out); }

unsigned bus_number(unsigned i) { return 0x06 + i * 0x10; }

void bus_text(unsigned i, char out[BUS_TEXT]) { snprintf(out, BUS_TEXT, "00000000:%02X:00.0", bus_number(i) & 0xff); }
