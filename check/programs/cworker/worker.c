/* A worker that uses the region in C. It carries out the orders that the package
 * comment of check/worker describes, except readonly and observe. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "line.h"
#include "region/internal.h"
#include "work.h"

static char path[PATH_MAX];
static struct region base; /* attached, without a slot; valid if opened */
static bool opened;
static struct region slots[RATION_SLOTS]; /* copies of base, each with a slot; the last is "the slot" */
static unsigned claimed;

static const char *const kinds[] = {"context", "module", "data", "overhead"};
static const char *const roles[] = {"fast", "waited", "helped", "initialiser"};

static void open_region(void)
{
	struct region_limits own = {0};
	snprintf(path, sizeof path, "%s", word());
	while (rest && !usage) {
		char *limit = strsep(&rest, " "), *bytes = strchr(limit, '=');
		unsigned long d = strtoul(limit, NULL, 10);
		if (!bytes || d >= RATION_DEVICES)
			usage = true;
		else
			own.memory[d] = make_limit(strtoull(bytes + 1, NULL, 10));
	}
	if (usage || opened)
		return;
	uint64_t start = clock_ns();
	int err = region_open(&base, path, &own);
	took(start);
	if (err) {
		failed(err);
		return;
	}
	opened = true;
	printf("ok role=%s pid=%d differ=", roles[base.role], (int)getpid());
	const char *comma = "";
	for (unsigned d = 0; d < RATION_DEVICES; d++)
		if (own.memory[d] && own.memory[d] != region_limit(&base, d)) {
			printf("%s%u", comma, d);
			comma = ",";
		}
	putchar('\n');
}

static int claim(const char *name)
{
	if (claimed == RATION_SLOTS)
		return REGION_FULL;
	slots[claimed] = base;
	uint64_t start = clock_ns();
	int err = region_claim(&slots[claimed], name);
	took(start);
	if (!err)
		claimed++;
	return err;
}

static int leave(void)
{
	uint64_t start = clock_ns();
	int err = region_leave(&slots[--claimed]);
	took(start);
	return err;
}

static void claims(unsigned n)
{
	unsigned before = claimed;
	int err = REGION_OK;
	for (unsigned i = 0; i < n && !err; i++)
		err = claim("many");
	unsigned got = claimed - before;
	while (claimed > before) {
		int left = leave();
		err = err ? err : left;
	}
	err ? failed(err) : ok("slots=%u", got);
}

static void change(char verb)
{
	unsigned d = device(), kind = 0;
	const char *name = word();
	while (kind < RATION_KINDS && strcmp(name, kinds[kind]))
		kind++;
	uint64_t bytes = number();
	if (usage || kind == RATION_KINDS || !claimed) {
		usage = true;
		return;
	}
	struct region *r = &slots[claimed - 1];
	struct region_refusal why = {0};
	uint64_t start = clock_ns();
	int err = verb == 'c'   ? region_charge(r, d, kind, bytes, &why)
		  : verb == 'f' ? region_charge_forced(r, d, kind, bytes)
				: region_return(r, d, kind, bytes);
	took(start);
	if (err == REGION_REFUSED)
		printf("refused asked=%ju held=%ju limit=%ju\n", (uintmax_t)why.asked, (uintmax_t)why.held, (uintmax_t)why.limit);
	else
		done(err);
}

static void limit(void)
{
	unsigned d = device();
	if (rest) {
		uint64_t bytes = number();
		if (!usage)
			done(region_set_limit(&base, d, make_limit(bytes)));
		return;
	}
	uint64_t l = region_limit(&base, d);
	if (limit_bounds(l))
		ok("bytes=%ju", (uintmax_t)limit_bytes(l));
	else
		ok("bytes=none");
}

static void holdings(void)
{
	static struct region_holding held[RATION_SLOTS];
	unsigned n = region_holdings(&base, device(), held, RATION_SLOTS);
	printf("ok");
	for (unsigned i = 0; i < n; i++) {
		printf(" %u:%ju", held[i].slot, (uintmax_t)held[i].usage.total);
		for (unsigned k = 0; k < RATION_KINDS; k++)
			printf(":%ju", (uintmax_t)held[i].usage.kind[k]);
		if (held[i].best_effort)
			printf(":best-effort");
	}
	putchar('\n');
}

static void processes(void)
{
	printf("ok");
	for (unsigned s = 0; s < region_high_water(&base); s++) {
		const struct ration_slot *e = &base.m->slots[s];
		if (status_state(load_acquire(&base.m->status[s])) == RATION_SLOT_ACTIVE)
			printf(" %u:%ju:%ju:%.*s:%s", s, (uintmax_t)e->pid, (uintmax_t)e->host_pid, (int)sizeof e->name,
			       (const char *)e->name, region_dead(&base, s, load_acquire(&base.m->status[s])) ? "dead" : "alive");
	}
	putchar('\n');
}

static void counters(void)
{
	const struct ration_counters *c = &base.m->header.counters;
	ok("retries=%ju best=%ju reaped=%ju refused=%ju helped=%ju claims=%ju fast=%ju", (uintmax_t)c->retries, (uintmax_t)c->best_effort,
	   (uintmax_t)c->reaped, (uintmax_t)c->refused, (uintmax_t)c->helped, (uintmax_t)c->claims, (uintmax_t)c->fast);
}

/* lose closes the region's descriptors, or replaces them by another file. */
static void lose(void)
{
	int other = rest ? open(word(), O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1, closed = 0;
	DIR *dir = opendir("/proc/self/fd");
	for (struct dirent *e; dir && (e = readdir(dir));) {
		char to[PATH_MAX];
		ssize_t n = readlinkat(dirfd(dir), e->d_name, to, sizeof to - 1);
		to[n > 0 ? n : 0] = 0;
		if (strcmp(to, path))
			continue;
		int fd = atoi(e->d_name);
		closed += (other >= 0 ? dup3(other, fd, O_CLOEXEC) : close(fd)) >= 0;
	}
	if (dir)
		closedir(dir);
	ok("closed=%d", closed);
}

/* exhaust takes every descriptor the process may still have. */
static void exhaust(void)
{
	struct rlimit few = {128, 128};
	setrlimit(RLIMIT_NOFILE, &few);
	while (open("/", O_PATH | O_CLOEXEC) >= 0)
		;
	done(errno == EMFILE ? REGION_OK : REGION_SYSTEM);
}

static void churn(unsigned threads)
{
	unsigned devices[RATION_DEVICES], count = 0;
	char *list = rest ? strsep(&rest, " ") : NULL;
	for (char *d; list && count < RATION_DEVICES && (d = strsep(&list, ","));)
		devices[count++] = (unsigned)strtoul(d, NULL, 10);
	uint64_t seed = number(), most = number();
	if (usage || !count || !most || !claimed) {
		usage = true;
		return;
	}
	work_churn(&slots[claimed - 1], threads, devices, count, seed, most);
	done(REGION_OK);
}

static void stop(int err)
{
	if (err)
		failed(err);
	else
		ok("ops=%ju refused=%ju longest=%ju", (uintmax_t)tally.ops, (uintmax_t)tally.refused, (uintmax_t)tally.longest);
	memset(&tally, 0, sizeof tally);
}

static int end(void)
{
	int err = REGION_OK;
	while (claimed) {
		int left = leave();
		err = err ? err : left;
	}
	if (opened)
		region_close(&base);
	opened = false;
	return err;
}

/* use carries out an order that needs a region. It returns whether there is such an
 * order. */
static bool use(const char *name)
{
	unsigned n = 0;
	char byte;
	if (!strcmp(name, "claim")) {
		int err = claim(word());
		err ? failed(err) : ok("slot=%u", slots[claimed - 1].slot);
	} else if (!strcmp(name, "claims"))
		claims((unsigned)number());
	else if (!strcmp(name, "leave") && claimed)
		done(leave());
	else if (!strcmp(name, "charge") || !strcmp(name, "force") || !strcmp(name, "return"))
		change(*name);
	else if (!strcmp(name, "reap")) {
		int err = region_reap(&base, &n);
		err ? failed(err) : ok("slots=%u", n);
	} else if (!strcmp(name, "used"))
		ok("bytes=%ju", (uintmax_t)region_used(&base, device()));
	else if (!strcmp(name, "limit"))
		limit();
	else if (!strcmp(name, "holdings"))
		holdings();
	else if (!strcmp(name, "processes"))
		processes();
	else if (!strcmp(name, "counters"))
		counters();
	else if (!strcmp(name, "lose"))
		lose();
	else if (!strcmp(name, "become")) {
		const char *command[8] = {NULL};
		for (n = 0; rest && n < 7; n++)
			command[n] = word();
		execv(command[0], (char **)command);
		done(REGION_SYSTEM);
	} else if (!strcmp(name, "exhaust"))
		exhaust();
	else if (!strcmp(name, "touch")) {
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		done(fd < 0 || read(fd, &byte, 1) < 0 || close(fd) < 0 ? REGION_SYSTEM : REGION_OK);
	} else if (!strcmp(name, "churn"))
		churn(1);
	else if (!strcmp(name, "threads")) {
		n = (unsigned)number();
		word(); /* churn */
		churn(n);
	} else if (!strcmp(name, "reaper")) {
		work_reap(&base);
		done(REGION_OK);
	} else
		return false;
	return true;
}

int main(void)
{
	char *line = NULL;
	size_t room = 0;
	for (ssize_t n; (n = getline(&line, &room, stdin)) > 0;) {
		int err = work_end();
		if (line[n - 1] == '\n')
			line[n - 1] = 0;
		rest = line;
		usage = false;
		const char *name = word();
		if (!strcmp(name, "quit")) {
			done(end());
			return 0;
		}
		if (!strcmp(name, "gate")) {
			for (char byte; read(3, &byte, 1) > 0;)
				;
			done(REGION_OK);
		} else if (!strcmp(name, "stop"))
			stop(err);
		else if (!strcmp(name, "open") && !opened)
			open_region();
		else
			usage = !opened || !use(name) || usage;
		if (usage)
			printf("error usage no such order\n");
		fflush(stdout);
	}
	work_end();
	return end() != REGION_OK;
}
