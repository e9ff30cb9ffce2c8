#include "place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "log.h"
#include "userjob.h"

static struct place place_now; /* guarded by LOCK_ATTACH */
static char place_list[PLACE_LIST];
static const char *place_listed; /* place_list, or NULL if no device is hidden; atomic */

void place_add(struct place *p, unsigned index, const struct ration_device_limits *l)
{
	if (l->hidden) {
		p->some = true;
	} else if (l->uuid[1]) {
		p->visible[p->count].index = index;
		memcpy(p->visible[p->count].uuid, l->uuid, sizeof l->uuid);
		p->count++;
	}
}

void place_uuid_text(const uint64_t uuid[2], char out[PLACE_UUID])
{
	snprintf(out, PLACE_UUID, "GPU-%08x-%04x-%04x-%04x-%012llx", (unsigned)(uuid[0] >> 32), (unsigned)(uuid[0] >> 16 & 0xffff),
		 (unsigned)(uuid[0] & 0xffff), (unsigned)(uuid[1] >> 48), (unsigned long long)(uuid[1] & 0xffffffffffff));
}

/* place_number parses an entry that is a number. It returns -1 for anything else, and for a
 * number without a device. */
static int place_number(const struct place *p, const char *entry, size_t len)
{
	unsigned n = 0;
	for (size_t i = 0; i < len; i++) {
		if (entry[i] < '0' || entry[i] > '9')
			return -1;
		if (n < p->count)
			n = n * 10 + (unsigned)(entry[i] - '0');
	}
	return len && n < p->count ? (int)n : -1;
}

/* place_selected returns the visible device that an entry selects, or -1. */
static int place_selected(const struct place *p, const char *entry, size_t len)
{
	enum { PREFIX = sizeof "GPU-" - 1 };
	int found = place_number(p, entry, len);
	if (found >= 0 || len <= PREFIX || strncmp(entry, "GPU-", PREFIX))
		return found;
	for (unsigned i = 0; i < p->count; i++) {
		char text[PLACE_UUID];
		place_uuid_text(p->visible[i].uuid, text);
		if (strncasecmp(text, entry, len))
			continue;
		if (found >= 0)
			return -1; /* it could be either */
		found = (int)i;
	}
	return found;
}

/* place_append appends a device to a list. */
static void place_append(const struct place *p, unsigned device, char *out)
{
	size_t len = strlen(out);
	if (len)
		out[len++] = ',';
	place_uuid_text(p->visible[device].uuid, out + len);
}

const char *place_translate(const struct place *p, const char *list, char out[PLACE_LIST])
{
	const char *end = NULL;
	out[0] = 0;
	for (unsigned i = 0; !list && i < p->count; i++)
		place_append(p, i, out);
	for (unsigned n = 0; list && n <= RATION_DEVICES; n++) {
		const char *entry = list + strspn(list, " ");
		size_t len = strcspn(entry, ", ");
		int device = place_selected(p, entry, len);
		if (device < 0) {
			end = entry;
			break;
		}
		place_append(p, (unsigned)device, out);
		list = (list = strchr(entry, ',')) ? list + 1 : NULL;
	}
	if (!*out)
		strcpy(out, "-1"); /* no device */
	return end;
}

/* place_log_end logs that an entry of the list selects no device. */
static void place_log_end(const struct place *p, const char *list, const char *entry)
{
	int len = (int)strcspn(entry, ", ");
	bool ruled = userjob_ruled();
	if (!strncmp(entry, "GPU-", 4))
		log_warn("CUDA_VISIBLE_DEVICES=%s: \"%.*s\" is no GPU of this job (%s)", list, len, entry,
			 ruled ? "ration policy show says which it has; ration policy move moves your ration to another"
			       : "ration inspect lists those of the job");
	else
		log_warn("CUDA_VISIBLE_DEVICES=%s: \"%.*s\" selects no GPU, because this job sees %u GPU%s, counted from 0 (%s)", list, len,
			 entry, p->count, p->count == 1 ? "" : "s", ruled ? "ration policy show says which" : "ration inspect lists them");
}

void place_set(const struct place *p)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	place_now = *p;
	if (!p->some) {
		__atomic_store_n(&place_listed, NULL, __ATOMIC_RELEASE);
		return;
	}
	const char *end = place_translate(p, list, place_list);
	if (end && *end && strcmp(end, "-1"))
		place_log_end(p, list, end);
	__atomic_store_n(&place_listed, place_list, __ATOMIC_RELEASE); /* pairs with place_getenv */
}

const struct place *place_get(void) { return &place_now; }

bool place_hides(void) { return __atomic_load_n(&place_listed, __ATOMIC_ACQUIRE); }

char *place_getenv(const char *name)
{
	const char *list = __atomic_load_n(&place_listed, __ATOMIC_ACQUIRE);
	return list && name && !strcmp(name, "CUDA_VISIBLE_DEVICES") ? (char *)list : getenv(name);
}

void place_indexes(const struct place *p, char *out, size_t size)
{
	size_t len = 0;
	*out = 0;
	for (unsigned i = 0; p->some && i < p->count && len < size; i++)
		len += (size_t)snprintf(out + len, size - len, "%s%u", i ? "," : "", p->visible[i].index);
}
