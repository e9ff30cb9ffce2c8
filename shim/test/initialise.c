/* Initialisation of a region that another process has begun, as docs/protocols.md has it: what
 * that process wrote stands; the waiter leaves it 5 ms, sleeps meanwhile, and then goes on. And
 * what is refused, and what a late process brings. The clock is this program's own: it moves
 * when the program sleeps, and a little with each look. */
#include <fcntl.h>
#include <sys/syscall.h>
#include <time.h>

#include "../region/internal.h"
#include "held.h"

static uint64_t clock_now, looks, naps, slept, longest;

__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *t)
{
	if (id != CLOCK_MONOTONIC)
		return (int)syscall(SYS_clock_gettime, id, t);
	looks++;
	clock_now += 100;
	*t = (struct timespec){(time_t)(clock_now / 1000000000), (long)(clock_now % 1000000000)};
	return 0;
}

__attribute__((visibility("default"))) int nanosleep(const struct timespec *t, struct timespec *left)
{
	uint64_t ns = (uint64_t)t->tv_sec * 1000000000 + (uint64_t)t->tv_nsec;
	(void)left;
	naps++;
	slept += ns;
	clock_now += ns;
	longest = ns > longest ? ns : longest;
	return 0;
}

static const char *path;

/* begun makes a region in which another process has come so far, and was stopped there. */
static void begun(const struct ration_header *header, uint64_t limit)
{
	static struct ration_region zero;
	unlink(path);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	EQ(ftruncate(fd, sizeof zero), 0);
	EQ(pwrite(fd, header, sizeof *header, 0), sizeof *header);
	EQ(pwrite(fd, &limit, sizeof limit, offsetof(struct ration_region, limits.device[0].memory)), sizeof limit);
	close(fd);
	looks = naps = slept = longest = 0;
}

static void helps(void)
{
	struct region r;
	struct region_limits own = {.memory = {make_limit(20 * MIB)}};
	begun(&(struct ration_header){.state = RATION_STATE_IN_PROGRESS, .flags = RATION_LIMITS_INSIDE, .created = 4711},
	      make_limit(10 * MIB));
	EQ(region_open(&r, path, &own), REGION_OK);
	EQ(r.role, ROLE_HELPED);
	EQ(r.m->header.counters.helped, 1);
	/* It was left 5 ms, and asked for a few times: from 50 us on, and never more than 1 ms apart. */
	CHECK(slept >= 5000000 - 100 * looks && slept <= 7000000);
	CHECK(naps >= 5 && naps <= 20 && looks <= 2 * naps + 4);
	EQ(longest, 1000000);
	/* The first one's stands. */
	EQ(limit_bytes(region_limit(&r, 0)), 10 * MIB);
	EQ(r.m->header.created, 4711);
	EQ(r.m->header.version, RATION_VERSION);
	region_close(&r);
	/* The next finds it complete, and waits for nothing. */
	looks = naps = 0;
	EQ(region_open(&r, path, &own), REGION_OK);
	EQ(r.role, ROLE_FAST_PATH);
	EQ(naps, 0);
	EQ(r.m->header.created, 4711);
	region_close(&r);
}

/* header writes one word of the region's header. */
static void header(size_t offset, const void *word, size_t size)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	EQ(pwrite(fd, word, size, (off_t)offset), size);
	close(fd);
}

/* Another version is refused as that, wherever it says so. */
static void versions(void)
{
	struct region r;
	static const struct region_limits none;
	uint32_t other = RATION_VERSION + 1, own = RATION_VERSION;
	char beside[4200];
	struct ration_limits page = {.magic = RATION_LIMITS_MAGIC, .version = RATION_VERSION + 1, .size = sizeof page};
	header(offsetof(struct ration_header, version), &other, sizeof other);
	EQ(region_open(&r, path, &none), REGION_VERSION);
	header(offsetof(struct ration_header, version), &own, sizeof own);
	EQ(region_open(&r, path, &none), REGION_OK);
	region_close(&r);
	snprintf(beside, sizeof beside, "%s.limits", path);
	for (int i = 0; i < 2; i++, page.version = RATION_VERSION) {
		int fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		EQ(write(fd, &page, sizeof page), sizeof page);
		close(fd);
		EQ(region_open(&r, path, &none), i ? REGION_OK : REGION_LIMITS);
	}
	region_close(&r);
	unlink(beside);
	/* An operator's file that was there, and is missing. */
	uint32_t where = RATION_LIMITS_BESIDE;
	header(offsetof(struct ration_header, flags), &where, sizeof where);
	EQ(region_open(&r, path, &none), REGION_LIMITS);
	/* One whose header says so before it was a region. */
	begun(&(struct ration_header){.version = RATION_VERSION + 1}, 0);
	EQ(region_open(&r, path, &none), REGION_DAMAGED);
	begun(&(struct ration_header){.state = RATION_STATE_COMPLETE, .version = RATION_VERSION + 1}, 0);
	EQ(region_open(&r, path, &none), REGION_DAMAGED);
}

/* What no process has set yet, a late one sets: each kind of limit by itself. */
static void late(void)
{
	struct region r;
	struct region_limits limits[] = {
		{.memory = {make_limit(10 * MIB)}}, {.compute = {30}}, {.compute_max = {[1] = 50}}, {.round = 5000}, {.compute = {60}}};
	unlink(path);
	for (unsigned i = 0; i < sizeof limits / sizeof *limits; i++) {
		EQ(region_open(&r, path, &limits[i]), REGION_OK);
		EQ(limit_bytes(region_limit(&r, 0)), 10 * MIB);
		EQ(region_share(&r, 0), i >= 1 ? 30 : 0);
		EQ(region_cap(&r, 1), i >= 2 ? 50 : 0);
		EQ(region_round(&r), i >= 3 ? 5000 : RATION_DEFAULT_ROUND);
		region_close(&r);
	}
}

/* A process leaves once, however many paths lead there: also where the driver still has what it
 * holds, and its slot is still its own. */
static void leaves_once(void)
{
	struct region r;
	static const struct region_limits none;
	EQ(region_open(&r, path, &none), REGION_OK);
	EQ(region_claim(&r, "leaves"), REGION_OK);
	EQ(region_charge(&r, 0, RATION_DATA, MIB, NULL), REGION_OK);
	EQ(region_end(&r), REGION_HELD);
	EQ(region_end(&r), REGION_EVICTED);
	EQ(region_leave(&r), REGION_EVICTED);
	EQ(region_charge(&r, 0, RATION_DATA, MIB, NULL), REGION_EVICTED);
	EQ(region_used(&r, 0), MIB);
	region_close(&r);
}

int main(void)
{
	path = getenv("RATION_REGION");
	helps();
	versions();
	late();
	leaves_once();
	return FINISH();
}
