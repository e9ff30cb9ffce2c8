/* Several busy jobs of low priority take turns beside one of high priority, which sends a small kernel
 * now and then. Each job is a process. One process runs at a time, until it sleeps; then the clock is
 * set forward to the first instant that one sleeps until. So nothing depends on how fast the machine
 * is. The figures are the targets of docs/benchmarks.md. */
#include "compute.h"

enum { JOBS = 16, REQUESTS = 60 };

#define SETTLED (1500 * MS) /* by then each process knows of the others */

struct job {
	pid_t pid;
	int to, from;
	uint64_t until;               /* it sleeps until then */
	uint64_t got, since, longest; /* what it got of the device, since when no more, and the longest such time */
};

/* The threads of this process: one runs at a time, until it sleeps. When all do, the test is told the first instant
 * that one of them sleeps until, and lets that one run. */
enum { THREADS = 2 };
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t woken = PTHREAD_COND_INITIALIZER;
static unsigned threads = 1, asleep, running;
static uint64_t wakes[THREADS];
static __thread unsigned self;

static void sleeps(uint64_t until)
{
	pthread_mutex_lock(&one);
	wakes[self] = until;
	if (++asleep == threads) {
		unsigned first = threads > 1 && wakes[1] < wakes[0];
		if (write(1, &wakes[first], sizeof until) != sizeof until || read(0, &(char){0}, 1) != 1)
			_exit(0); /* the test has ended */
		running = first;
		pthread_cond_broadcast(&woken);
	} else {
		running = threads; /* none, until all sleep */
	}
	while (running != self)
		pthread_cond_wait(&woken, &one);
	asleep--;
	pthread_mutex_unlock(&one);
}

static void nap(uint64_t ns)
{
	struct timespec t = {(time_t)(ns / SECOND), (long)(ns % SECOND)};
	clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

static struct fakegpu_engine_context own(void) { return books_of(0, getpid(), 0); }

/* A job that always has work for so long under way, if it is let. One that pauses has 30 ms of work, and
 * then none for as long. One that dies does so when it has launched for a while. */
static void busy(uint64_t ahead, bool pauses, bool dies)
{
	CUfunction f = kernel("quick");
	for (unsigned i = 1;; i++) {
		OK(launch(f, NULL));
		if (i % 16 == 0)
			while (own().submitted_ns - own().got_ns > ahead)
				nap(MS);
		if (dies && i == 1000)
			raise(SIGKILL);
		if (pauses && i % 150 == 0) {
			while (cuStreamQuery(NULL) != CUDA_SUCCESS)
				nap(MS);
			nap(30 * MS);
		}
	}
}

/* A second thread that does the same in the same context. */
static void *second(void *context)
{
	self = 1;
	sleeps(machine_now(0) + 100 * US);
	OK(cuCtxSetCurrent(context));
	busy(20 * MS, false, false);
	return NULL;
}

static void twice(void)
{
	pthread_t t;
	CUcontext context;
	OK(cuCtxGetCurrent(&context));
	threads = THREADS;
	EQ(pthread_create(&t, NULL, second, context), 0);
	busy(20 * MS, false, false);
}

/* A process without work that claims whatever the processes of low priority do, for half an hour, and to be
 * busy. If it rests, it claims nothing for a moment now and then. A seat is 2^32 bytes of the file, and a
 * kind 2^42: low is 2, busy 3. */
static void lies(uint64_t claims, uint64_t rest)
{
	char path[4200];
	snprintf(path, sizeof path, "%s/priority", getenv("RATION_DIR"));
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	for (;;) {
		struct flock l = {0}, all = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
		for (off_t at = 0; at >= 0; at = l.l_start + l.l_len) {
			l = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at};
			if (fcntl(fd, F_GETLK, &l) != 0 || l.l_type == F_UNLCK || l.l_len == 0)
				break;
			struct flock same = {
				.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = l.l_start ^ (off_t)1 << 32, .l_len = l.l_len + 1800000};
			EQ(l.l_start % ((off_t)1 << 32) == 0 ? fcntl(fd, F_SETLK, &same) : 0, 0);
			same.l_start += (off_t)1 << 42;
			EQ((l.l_start >> 42 & 3) == 2 ? fcntl(fd, F_SETLK, &same) : 0, 0);
		}
		nap(claims);
		if (rest) {
			EQ(fcntl(fd, F_SETLK, &all), 0);
			nap(rest);
		}
	}
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

/* A small kernel every 20 ms or so; it prints how long the median and the worst took. */
static int serving(void)
{
	uint64_t took[REQUESTS];
	CUfunction f = kernel("tiny");
	OK(launch(f, NULL)); /* from here on the others know of it */
	nap(SETTLED);
	for (unsigned i = 0; i < REQUESTS; i++) {
		struct fakegpu_engine_context before = own();
		OK(launch(f, NULL));
		nap(10 * MS);
		struct fakegpu_engine_context after = own();
		took[i] = after.waited_ns + after.got_ns - before.waited_ns - before.got_ns;
		nap(10 * MS + i * 37 * US);
	}
	qsort(took, REQUESTS, sizeof *took, compare);
	fprintf(stderr, "small kernel: median %lu us, worst %lu us\n", (unsigned long)(took[REQUESTS / 2] / US),
		(unsigned long)(took[REQUESTS - 1] / US));
	CHECK(took[REQUESTS / 2] <= strtoul(getenv("MEDIAN_US"), NULL, 10) * US);
	CHECK(took[REQUESTS - 2] <= strtoul(getenv("MOST_US"), NULL, 10) * US);
	return checks_failed > 0;
}

/* What the device did for this process, and what the library measured of it. */
struct account {
	uint64_t got, used, in_turn;
};

static struct account account(void)
{
	const struct ration_compute *c = &region_here()->m->compute[0];
	return (struct account){own().got_ns, load_acquire(&c->used), load_acquire(&c->in_turn)};
}

static bool near(double x, double y) { return x >= y * 0.98 && x <= y * 1.02; }

/* A job that always has work, or a kernel of a millisecond now and then. Without the turns of the others, which all
 * last WHOLE_US with the switches, its measured time is what the device did for it, within 2 %. */
static int counted(bool always)
{
	CUfunction f = kernel(always ? "quick" : "one");
	struct account before = {0}, after;
	for (uint64_t from = machine_now(0), now = from; now < from + 4 * SECOND; now = machine_now(0)) {
		if (now < from + SECOND)
			before = account();
		OK(launch(f, NULL));
		nap(always ? 200 * US : 41 * MS);
		while (always && own().submitted_ns - own().got_ns > 40 * MS)
			nap(MS);
	}
	after = account();
	double got = (double)(after.got - before.got), used = (double)(after.used - before.used),
	       turn = (double)(after.in_turn - before.in_turn);
	double slice = (double)slice_of(0), estimate = turn + (used - turn) * (slice - 40) / atof(getenv("WHOLE_US"));
	fprintf(stderr, "slice %.0f us: got %.1f ms, measured %.1f ms, %.1f of them in its turn, estimated %.1f ms\n", slice, got / 1e6,
		used / 1e6, turn / 1e6, estimate / 1e6);
	CHECK(near(estimate, got));
	CHECK(always ? turn < used / 100 && near(used, 3e9) : near(turn, used));
	return checks_failed > 0;
}

static int work(const char *role)
{
	start_timed();
	on_sleep = sleeps;
	nap(10 * MS); /* a thread says at most every few milliseconds that it has work */
	if (!strcmp(role, "serving"))
		return serving();
	if (!strcmp(role, "lies"))
		lies(100 * MS, 0);
	if (!strcmp(role, "rests"))
		lies(950 * MS, 30 * MS);
	if (!strncmp(role, "counted", 7))
		return counted(!strcmp(role, "counted"));
	if (!strcmp(role, "threads"))
		twice();
	busy(strcmp(role, "ahead") ? 20 * MS : 60 * MS, !strcmp(role, "pauses"), !strcmp(role, "dies"));
	return 1;
}

static void report(struct job *j)
{
	if (read(j->from, &j->until, sizeof j->until) != sizeof j->until)
		j->until = 0; /* it has ended */
}

static struct job begin(const char *role, const char *priority)
{
	static unsigned jobs;
	int to[2], from[2];
	struct job j;
	char region[4200];
	snprintf(region, sizeof region, "%s/job%u", getenv("FAKEGPU_STATE"), jobs++);
	EQ(pipe2(to, O_CLOEXEC), 0);
	EQ(pipe2(from, O_CLOEXEC), 0);
	j = (struct job){.pid = fork(), .to = to[1], .from = from[0]};
	if (j.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(to[0], 0);
		dup2(from[1], 1);
		setenv("RATION_REGION", region, 1);
		setenv("RATION_PRIORITY", priority, 1);
		execl("/proc/self/exe", "compute_turns", role, (char *)NULL);
		_exit(127);
	}
	close(to[0]);
	close(from[1]);
	report(&j);
	return j;
}

/* Looks whether the device has worked for a job since the last look. */
static void watch(struct job *j, uint64_t now)
{
	uint64_t got = books_of(0, j->pid, 0).got_ns;
	if (got == j->got)
		return;
	j->longest = j->since && now - j->since > j->longest ? now - j->since : j->longest;
	j->got = got;
	j->since = now;
}

/* Lets the jobs run until this time, or until the first of them ends; then it returns its status. */
static int run(struct job *jobs, unsigned n, uint64_t until)
{
	int status;
	for (;;) {
		struct job *next = jobs;
		for (unsigned i = 1; i < n; i++)
			next = jobs[i].until < next->until ? &jobs[i] : next;
		uint64_t now = machine_now(0);
		if (next->until > until)
			return -1;
		if (next->until > now) {
			later(next->until - now);
			for (unsigned i = 1; i < n; i++)
				watch(&jobs[i], next->until);
		}
		EQ(write(next->to, "x", 1), 1);
		report(next);
		if (jobs->until == 0) {
			waitpid(jobs->pid, &status, 0);
			return status;
		}
		if (next->until == 0)
			next->until = UINT64_MAX;
	}
}

struct expected {
	uint64_t together; /* at least so many per cent of what one does alone */
	uint64_t each;     /* at least so many per cent of the time for each of those that are always busy */
	const char *median_us, *most_us;
	uint64_t longest_ms; /* the longest time in which one of those got nothing */
};

/* So many jobs of low priority, the last of which has another role, beside one of high priority. */
static void jobs(unsigned lows, const char *last, struct expected want)
{
	struct job j[JOBS];
	uint64_t before[JOBS], sum = 0, begun, longest = 0;
	bool alike = !strcmp(last, "busy");
	setenv("MEDIAN_US", want.median_us, 1);
	setenv("MOST_US", want.most_us, 1);
	j[0] = begin("serving", "high");
	for (unsigned i = 1; i <= lows; i++)
		j[i] = begin(i == lows ? last : "busy", "low");
	EQ(run(j, lows + 1, machine_now(0) + SETTLED), -1);
	for (unsigned i = 1; i <= lows; i++) {
		before[i] = books_of(0, j[i].pid, 0).got_ns;
		j[i].longest = 0;
	}
	begun = machine_now(0);
	EQ(run(j, lows + 1, UINT64_MAX - 1), 0);
	uint64_t passed = machine_now(0) - begun;
	for (unsigned i = 1; i <= lows; i++) {
		uint64_t part = books_of(0, j[i].pid, 0).got_ns - before[i];
		sum += part;
		fprintf(stderr, "job %u: %lu of 1000\n", i, (unsigned long)(part * 1000 / passed));
		longest = (i < lows || alike) && j[i].longest > longest ? j[i].longest : longest;
		CHECK(part * 100 >= want.each * passed || (i == lows && !alike));
	}
	fprintf(stderr, "%u jobs, %s: %lu of 1000, waited for up to %lu ms\n", lows, last, (unsigned long)(sum * 1000 / passed),
		(unsigned long)(longest / MS));
	CHECK(longest <= want.longest_ms * MS);
	CHECK(sum * 100 >= want.together * passed);
	for (unsigned i = 0; i <= lows; i++) {
		kill(j[i].pid, SIGKILL);
		waitpid(j[i].pid, NULL, 0);
		close(j[i].to);
		close(j[i].from);
	}
}

/* Jobs with shares of the device's time that count what they get of it. The last one works now and then. */
static void accounts(unsigned n, const char *const *shares, const char *last)
{
	struct job j[JOBS];
	char whole[16];
	double us = 0;
	for (unsigned i = 0; i < n; i++)
		us += i == n - 1 && strcmp(last, "counted") ? 0 : atof(shares[i]) * 200 + 180;
	snprintf(whole, sizeof whole, "%.0f", us);
	setenv("WHOLE_US", whole, 1);
	setenv("RATION_COMPUTE_MAX", "100", 1);
	for (unsigned i = 0; i < n; i++) {
		setenv("CUDA_DEVICE_SM_LIMIT", shares[i], 1);
		j[i] = begin(i == n - 1 ? last : "counted", "normal");
	}
	for (unsigned i = 0; i < n; i++)
		EQ(run(j + i, n - i, UINT64_MAX - 1), 0);
	for (unsigned i = 0; i < n; i++) {
		close(j[i].to);
		close(j[i].from);
	}
	unsetenv("RATION_COMPUTE_MAX");
	unsetenv("CUDA_DEVICE_SM_LIMIT");
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return work(argv[1]);
	signal(SIGPIPE, SIG_IGN);
	start_timed();
	accounts(4, (const char *const[]){"10", "20", "30", "40"}, "counted");
	accounts(2, (const char *const[]){"40", "40"}, "counted now and then");
	jobs(1, "busy", (struct expected){97, 97, "350", "600", 1000});
	/* A request that comes while a turn ends waits for two switches. */
	jobs(3, "busy", (struct expected){90, 28, "600", "1200", 130});
	jobs(3, "ahead", (struct expected){90, 28, "600", "1200", 130});
	jobs(3, "threads", (struct expected){90, 28, "600", "1200", 130});
	jobs(3, "pauses", (struct expected){85, 30, "600", "1200", 130});
	jobs(3, "dies", (struct expected){90, 42, "600", "1200", 130});
	/* As with longer slices, without turns. */
	jobs(3, "lies", (struct expected){75, 35, "2500", "3500", 1000});
	jobs(2, "rests", (struct expected){90, 90, "1500", "2500", 1000});
	return FINISH();
}
