#include "compute/claims.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "environment.h"
#include "hooks.h"
#include "log.h"
#include "region/atomics.h"
#include "region/region.h"
#include "userjob.h"

/* A position in the file, from the highest bit: device, kind, seat, time. A process's claim is the
 * range from the beginning of its seat up to the time until which the claim counts. A claim that begins
 * a few bytes later tells a number by that: its detail. */
enum { CLAIMS_TIME_BITS = 32, CLAIMS_SEAT_BITS = 10, CLAIMS_KIND_BITS = 2, CLAIMS_DEVICE_BITS = 18 };
#define CLAIMS_SEAT_SIZE (UINT64_C(1) << CLAIMS_TIME_BITS)
#define CLAIMS_KIND_SIZE (CLAIMS_SEAT_SIZE << CLAIMS_SEAT_BITS)
#define CLAIMS_DEVICE_SIZE (CLAIMS_KIND_SIZE << CLAIMS_KIND_BITS)
enum { CLAIMS_SEATS = 1 << CLAIMS_SEAT_BITS, CLAIMS_SEAT_TRIES = 16, CLAIMS_DETAILS = 4096 };

static const char claims_name[] = "priority", claims_machine[] = "/run/ration/priority", claims_shared[] = "/tmp/ration-priority";

/* The open file. fd is -1 before it is opened, CLAIMS_OPENING while a thread opens it, and CLAIMS_NONE
 * if there is no such file, or no free seat; atomic. The others are written before fd. */
enum { CLAIMS_NONE = -2, CLAIMS_OPENING = -3 };
static int claims_fd = -1;
/* When to try again after CLAIMS_NONE, by claims_now: another process may have locked all seats for a
 * moment, or root may make the file later. */
#define CLAIMS_RETRY_MS UINT64_C(5000)
static uint64_t claims_retry;
static uint32_t claims_complained; /* atomic */
static uint64_t claims_dev, claims_ino;
static unsigned claims_seat;

/* The kernel searches all locks of a file at each call, and any user may hold very many. So the calls
 * may take SPENT ns of CPU time each on average, and DEBT more than that once. Then the file is not
 * used for CLAIMS_RETRY_MS, as if there were none; only locks that are held are removed. One of TIMED
 * calls is measured; while there is debt, each. Atomic; of two threads one may overwrite the other's
 * debt. */
#define CLAIMS_SPENT_NS INT64_C(20000)
#define CLAIMS_DEBT_NS INT64_C(1000000)
#define CLAIMS_TIMED 7
static int64_t claims_debt;
static uint32_t claims_calls;
static uint64_t claims_rest; /* until when the file is not used, by claims_now; 0: it is */

static bool claims_same_file(int fd)
{
	struct stat st;
	return region_stat(fd, &st) == 0 && st.st_dev == load_acquire(&claims_dev) && st.st_ino == load_acquire(&claims_ino);
}

void claims_reset(void)
{
	int fd = __atomic_exchange_n(&claims_fd, -1, __ATOMIC_SEQ_CST);
	if (fd >= 0 && claims_same_file(fd))
		close(fd);
}

uint64_t claims_now(void) { return clock_read(CLOCK_REALTIME) / 1000000; }

/* claims_rests returns true while the file is not used because of the time that its calls took. */
static bool claims_rests(void)
{
	uint64_t until = load_acquire(&claims_rest);
	if (likely(!until))
		return false;
	if (claims_now() < until)
		return true;
	store_release(&claims_rest, 0);
	return false;
}

/* claims_took counts the CPU time of a call. After a rest, one slow call is enough for the next one. */
static void claims_took(uint64_t ns)
{
	static uint32_t complained; /* atomic */
	int64_t debt = __atomic_load_n(&claims_debt, __ATOMIC_RELAXED) + (int64_t)ns - CLAIMS_SPENT_NS;
	if (debt >= CLAIMS_DEBT_NS) {
		debt = CLAIMS_DEBT_NS - CLAIMS_SPENT_NS;
		store_release(&claims_rest, claims_now() + CLAIMS_RETRY_MS);
		if (!__atomic_exchange_n(&complained, 1, __ATOMIC_RELAXED))
			log_warn("priority: not enforced for now: locks on the file of claims take too long, because there are very many "
				 "(ration doctor tells whose they are)");
	}
	__atomic_store_n(&claims_debt, debt > 0 ? debt : 0, __ATOMIC_RELAXED);
}

static int claims_call(int fd, int command, struct flock *l)
{
	if (likely(!__atomic_load_n(&claims_debt, __ATOMIC_RELAXED)) &&
	    __atomic_fetch_add(&claims_calls, 1, __ATOMIC_RELAXED) % CLAIMS_TIMED != 0)
		return fcntl(fd, command, l);
	uint64_t begun = clock_read(CLOCK_THREAD_CPUTIME_ID);
	int result = fcntl(fd, command, l);
	claims_took(clock_read(CLOCK_THREAD_CPUTIME_ID) - begun);
	return result;
}

/* claims_lock sets the locks of this process in a range, or removes them. */
static bool claims_lock(int fd, short type, uint64_t from, uint64_t bytes)
{
	struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)from, .l_len = (off_t)bytes};
	return (type == F_UNLCK || !claims_rests()) && claims_call(fd, F_SETLK, &l) == 0;
}

/* claims_find finds a lock of another process in a range, any one of them. It returns 1, or 0 if
 * there is none, or -1 if the kernel does not tell. */
static int claims_find(int fd, uint64_t from, uint64_t bytes, struct flock *found)
{
	/* A lock for writing would be in the way of every lock; it is only asked about. */
	*found = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)from, .l_len = (off_t)bytes};
	if (claims_rests() || claims_call(fd, F_GETLK, found) != 0)
		return -1;
	return found->l_type != F_UNLCK;
}

/* claims_take_seat takes a seat that no other process has. Two processes that take one seat at the
 * same time both see it, and try again. */
static bool claims_take_seat(int fd)
{
	struct flock found;
	uint64_t random = clock_read(CLOCK_REALTIME) * 2654435761u + (uint64_t)getpid() * UINT64_C(0x9e3779b97f4a7c15);
	for (unsigned i = 0; i < CLAIMS_SEAT_TRIES; i++, random = random * UINT64_C(6364136223846793005) + 1442695040888963407u) {
		unsigned seat = (unsigned)(random >> 33) % CLAIMS_SEATS;
		uint64_t at = CLAIMS_SEAT * CLAIMS_KIND_SIZE + seat * CLAIMS_SEAT_SIZE;
		if (!claims_lock(fd, F_RDLCK, at, 1))
			return false;
		if (claims_find(fd, at, 1, &found) == 0) {
			claims_seat = seat;
			return true;
		}
		claims_lock(fd, F_UNLCK, at, 1);
	}
	return false;
}

/* claims_open_at opens a file for reading, and makes it if `make`. Nobody needs to write it, so that
 * nobody can fill a disk with it. */
static int claims_open_at(const char *path, bool make)
{
	int fd = region_open_fd(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
	if (fd < 0 && errno == ENOENT && make) {
		fd = region_open_fd(path, O_RDONLY | O_NOFOLLOW | O_CREAT | O_EXCL, 0444);
		if (fd >= 0)
			fchmod(fd, 0444); /* whatever the umask */
		else if (errno == EEXIST)
			fd = region_open_fd(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
	}
	return fd;
}

/* claims_search opens the machine's file: that of the folder of jobs, if the user has chosen one and
 * no policy rations this user; otherwise root's, or else the one that all users share. */
static int claims_search(void)
{
	char path[512];
	const char *dir = environment_get("RATION_DIR");
	int fd;
	if (dir && *dir && !userjob_ruled()) {
		int n = snprintf(path, sizeof path, "%s/%s", dir, claims_name);
		return n > 0 && (size_t)n < sizeof path ? claims_open_at(path, true) : -1;
	}
	if ((fd = claims_open_at(claims_machine, true)) >= 0)
		return fd;
	/* Any user may have put something there. What is mounted on it could keep us waiting. */
	struct stat folder, file;
	fd = claims_open_at(claims_shared, true);
	if (fd < 0 || (region_lstat("/tmp", &folder) && region_stat(fd, &file) == 0 && file.st_dev == folder.st_dev))
		return fd;
	close(fd);
	return -1;
}

/* claims_opened opens the file and takes a seat. It returns CLAIMS_NONE if that is not possible. */
static int claims_opened(void)
{
	struct stat st;
	int fd = claims_search();
	if (fd >= 0 && region_stat(fd, &st) == 0 && S_ISREG(st.st_mode) && claims_take_seat(fd)) {
		store_release(&claims_dev, (uint64_t)st.st_dev);
		store_release(&claims_ino, (uint64_t)st.st_ino);
		return fd;
	}
	if (fd >= 0)
		close(fd);
	store_release(&claims_retry, claims_now() + CLAIMS_RETRY_MS);
	if (!__atomic_exchange_n(&claims_complained, 1, __ATOMIC_RELAXED))
		log_warn("priority: not enforced: there is no file of claims, or no seat in it (let root make %s with mode 0444; mount it "
			 "in "
			 "containers)",
			 claims_machine);
	return CLAIMS_NONE;
}

/* claims_file returns the open file, or a negative number if there is none, or none yet. */
static int claims_file(void)
{
	int fd = __atomic_load_n(&claims_fd, __ATOMIC_ACQUIRE), cancel;
	/* The program may have closed it, and opened another file with its number. Then all claims of
	 * this process are gone, and it starts anew. */
	if (fd >= 0 ? claims_same_file(fd) : fd == CLAIMS_OPENING || (fd == CLAIMS_NONE && claims_now() < load_acquire(&claims_retry)))
		return fd;
	/* One thread opens it: closing a second descriptor would drop all locks of this process. */
	if (!__atomic_compare_exchange_n(&claims_fd, &fd, CLAIMS_OPENING, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return CLAIMS_OPENING;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	fd = claims_opened();
	__atomic_store_n(&claims_fd, fd, __ATOMIC_SEQ_CST);
	pthread_setcancelstate(cancel, &cancel);
	return fd;
}

static uint64_t claims_base(const uint64_t uuid[2], enum claims_kind kind)
{
	uint64_t device = ((uuid[0] ^ uuid[1]) * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - CLAIMS_DEVICE_BITS);
	return device * CLAIMS_DEVICE_SIZE + kind * CLAIMS_KIND_SIZE;
}

bool claims_hold_with(const uint64_t uuid[2], enum claims_kind kind, unsigned detail, uint64_t until)
{
	int fd = claims_file();
	if (fd < 0)
		return false;
	uint64_t seat = claims_base(uuid, kind) + claims_seat * CLAIMS_SEAT_SIZE, bytes = until % CLAIMS_SEAT_SIZE;
	detail = detail < CLAIMS_DETAILS ? detail : CLAIMS_DETAILS - 1;
	if (!until || bytes <= detail)
		return claims_lock(fd, F_UNLCK, seat, CLAIMS_SEAT_SIZE);
	/* First the longer range: at no instant is there none. */
	return claims_lock(fd, F_RDLCK, seat + detail, bytes - detail) &&
	       claims_lock(fd, F_UNLCK, seat + bytes, CLAIMS_SEAT_SIZE - bytes) && (!detail || claims_lock(fd, F_UNLCK, seat, detail));
}

bool claims_hold(const uint64_t uuid[2], enum claims_kind kind, uint64_t until) { return claims_hold_with(uuid, kind, 0, until); }

/* claims_counts returns true if a lock is a claim on a seat that counts now. */
static bool claims_counts(const struct flock *l, uint64_t seat, uint64_t now)
{
	uint64_t start = (uint64_t)l->l_start, until = start - seat + (uint64_t)l->l_len;
	/* The library has no locks of open files, whose owner the kernel does not tell: pid -1. */
	return l->l_pid >= 0 && start >= seat && start < seat + CLAIMS_DETAILS && l->l_len > 0 && until < CLAIMS_SEAT_SIZE &&
	       (uint32_t)(until - now % CLAIMS_SEAT_SIZE) <= (uint32_t)CLAIMS_MOST_MS;
}

/* claims_hides returns true if a lock on a seat that is no claim may hide a claim behind it: of several locks on a range the
 * kernel shows only the oldest. A claim in force covers the byte of the present time. So does a claim of this library that
 * lapsed before the time last wrapped around to 0. */
static bool claims_hides(const struct flock *l, uint64_t seat, uint64_t now)
{
	uint64_t at = now % CLAIMS_SEAT_SIZE, start = (uint64_t)l->l_start, end = start + (uint64_t)l->l_len - seat;
	bool ours = l->l_pid >= 0 && l->l_len > 0 && start >= seat && start < seat + CLAIMS_DETAILS && end < CLAIMS_SEAT_SIZE;
	return start <= seat + at && (!l->l_len || end > at) && !(ours && (int32_t)(uint32_t)(end - at) < 0);
}

/* claims_allowed returns true if the owner of a lock may claim high priority. What was found out about
 * a process counts for a second, so that many claims cost little. */
static bool claims_allowed(const struct flock *l, uint64_t now)
{
	/* The process in the high half, the second and, in the lowest bit, the answer. Atomic. */
	static uint64_t judged[CLAIMS_MANY];
	uint64_t *word = &judged[(uint32_t)l->l_pid % CLAIMS_MANY], known = load_acquire(word);
	uint64_t question = (uint64_t)(uint32_t)l->l_pid << 32 | (uint32_t)(now / 1000) << 1;
	if (known >> 1 == question >> 1)
		return known & 1;
	bool may = userjob_may_be_high(l->l_pid);
	store_release(word, question | may);
	return may;
}

unsigned claims_others(const uint64_t uuid[2], enum claims_kind kind, uint64_t now)
{
	struct claims_found found;
	return claims_find_all(uuid, kind, now, &found);
}

unsigned claims_find_all(const uint64_t uuid[2], enum claims_kind kind, uint64_t now, struct claims_found *others)
{
	/* The kernel returns any lock of a range. So each lock that is found divides the range in two;
	 * the second part is put off. */
	struct {
		unsigned from, to;
	} left[CLAIMS_MANY + 1] = {{0, CLAIMS_SEATS}};
	unsigned parts = 1, found = 0, count = 0;
	uint64_t base = claims_base(uuid, kind);
	int fd = claims_file();
	*others = (struct claims_found){0};
	while (fd >= 0 && parts) {
		unsigned from = left[parts - 1].from, to = left[parts - 1].to;
		struct flock l;
		int is = from < to ? claims_find(fd, base + from * CLAIMS_SEAT_SIZE, (to - from) * CLAIMS_SEAT_SIZE, &l) : 0;
		if (is < 0)
			return CLAIMS_MANY;
		if (!is) {
			parts--;
			continue;
		}
		/* A lock over several seats is none of ours. */
		uint64_t start = (uint64_t)l.l_start;
		unsigned seat = start < base ? from : (unsigned)((start - base) / CLAIMS_SEAT_SIZE);
		seat = seat < from ? from : seat;
		bool valid = claims_counts(&l, base + seat * CLAIMS_SEAT_SIZE, now),
		     counts = valid && (kind != CLAIMS_HIGH || claims_allowed(&l, now));
		if (!valid && claims_hides(&l, base + seat * CLAIMS_SEAT_SIZE, now))
			return CLAIMS_MANY;
		count += counts;
		others->before += counts && seat < claims_seat;
		others->details += counts ? start - (base + seat * CLAIMS_SEAT_SIZE) : 0;
		if (++found >= CLAIMS_MANY)
			return CLAIMS_MANY;
		left[parts - 1].to = seat;
		left[parts].from = seat + 1;
		left[parts].to = to;
		parts++;
	}
	return fd < 0 ? CLAIMS_MANY : count;
}
