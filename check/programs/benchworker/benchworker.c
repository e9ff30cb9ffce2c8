/* The worker of `ration bench` in C. It carries out the orders that check/bench/worker.go
 * describes, with the code of the region that libration.so is made of. It also measures what
 * that is compared with: bare atomic operations, a plain sequence lock, a file lock. */
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "region/internal.h"

enum {
	CHARGE = 4096, /* bytes of one charge */
	TENSOR = 2 << 20,
	MAX_THREADS = 64,
	BINS = 1 << 20, /* of struct times: nanoseconds */
	GATE = 3,       /* descriptor */
};

static struct region base;                /* attached, without a slot */
static struct region slots[RATION_SLOTS]; /* copies of base, each with a slot; the first is the worker's own */
static unsigned claimed;
static uint64_t held; /* charges of slots[0] that the order live made */

/* must ends the worker: its owner prints the message. */
static void must(int err, const char *what)
{
	if (!err)
		return;
	fprintf(stderr, "%s: %s\n", what, region_error_text(err));
	exit(1);
}

static double wall(void) { return (double)now_ns(CLOCK_MONOTONIC); }
static double thread_cpu(void) { return (double)now_ns(CLOCK_THREAD_CPUTIME_ID); }
static double process_cpu(void) { return (double)now_ns(CLOCK_PROCESS_CPUTIME_ID); }

static void charge(struct region *r, unsigned device, unsigned kind, uint64_t bytes)
{
	must(region_charge(r, device, kind, bytes, NULL), "charging");
}
static void give_back(struct region *r, unsigned device, unsigned kind, uint64_t bytes)
{
	must(region_return(r, device, kind, bytes), "returning");
}

/* Times of single operations, counted by nanosecond. The last bin has all longer ones. */
struct times {
	uint32_t bins[BINS];
	double n, least, most;
};

static void times_add(struct times *t, double ns)
{
	t->bins[ns < BINS - 1 ? (unsigned)ns : BINS - 1]++;
	t->least = t->n && t->least < ns ? t->least : ns;
	t->most = t->most > ns ? t->most : ns;
	t->n++;
}

static double times_percentile(const struct times *t, double p)
{
	double rank = p / 100 * t->n;
	for (unsigned i = 0; i < BINS - 1; i++)
		if ((rank -= t->bins[i]) < 0)
			return i;
	return t->most;
}

static void times_print(const struct times *t)
{
	printf("%.9g %.9g %.9g %.9g %.9g %.0f", times_percentile(t, 50), times_percentile(t, 99), times_percentile(t, 99.9), t->least,
	       t->most, t->n);
}

static void claim(void)
{
	slots[claimed] = base;
	must(region_claim(&slots[claimed], "bench"), "claiming a slot");
	claimed++;
}

static void order_open(const char *path, uint64_t limit)
{
	static char kept[PATH_MAX];
	struct region_limits own = {0};
	snprintf(kept, sizeof kept, "%s", path);
	for (unsigned d = 0; d < RATION_DEVICES; d++)
		own.memory[d] = make_limit(limit);
	double from = wall(), spent = thread_cpu();
	must(region_open(&base, kept, &own), "opening the region");
	claim();
	printf("%d %.0f %.0f\n", base.role, wall() - from, thread_cpu() - spent);
}

static void order_burn(double ns)
{
	double from = wall(), spent = thread_cpu();
	while (thread_cpu() - spent < ns)
		;
	printf("%.0f\n", wall() - from);
}

/* Operations that are timed many at once. */
static void repeat_add(uint64_t n)
{
	static uint64_t word;
	for (; n; n--)
		__atomic_fetch_add(&word, 1, __ATOMIC_SEQ_CST);
}

static void repeat_load(uint64_t n)
{
	static uint64_t word;
	for (; n; n--)
		load_acquire(&word);
}

static void repeat_charge(uint64_t n)
{
	for (; n; n--)
		charge(&slots[0], 0, RATION_DATA, CHARGE);
}

static void repeat_return(uint64_t n)
{
	for (; n; n--)
		give_back(&slots[0], 0, RATION_DATA, CHARGE);
}

static void repeat_used(uint64_t n)
{
	static volatile uint64_t sink;
	uint64_t sum = 0;
	for (; n; n--)
		sum += region_used(&base, 0);
	sink = sum;
	(void)sink;
}

static void repeat_turns(uint64_t n)
{
	for (n /= 2; n; n--) {
		charge(&slots[0], 0, RATION_DATA, CHARGE);
		charge(&slots[1], 0, RATION_DATA, CHARGE);
	}
}

/* The usage of an account alone: its turn, its sequence lock and both copies. */
static void repeat_publish(uint64_t n)
{
	static struct ration_account a;
	static struct region_turn turn;
	for (; n; n--) {
		if (!turn_try(&turn))
			turn_wait(&turn);
		region_put(&turn, &a, RATION_DATA, n & 1 ? -CHARGE : CHARGE);
		turn_end(&turn);
	}
}

/* A sequence lock as it is usually made: one writer, one copy. A writer that is stopped in the
 * middle stops every reader. */
static struct plain {
	uint64_t seq, fields[4]; /* seq is odd while a write is under way */
} __attribute__((aligned(64))) plain;

static void plain_write(uint64_t v)
{
	uint64_t seq = plain.seq;
	store_release(&plain.seq, seq + 1);
	for (unsigned i = 0; i < 4; i++)
		store_release(&plain.fields[i], v);
	store_release(&plain.seq, seq + 2);
}

static unsigned plain_read(uint64_t fields[4])
{
	for (unsigned retries = 0;; retries++) {
		uint64_t seq = load_acquire(&plain.seq);
		for (unsigned i = 0; i < 4; i++)
			fields[i] = load_acquire(&plain.fields[i]);
		if ((seq % 2 == 0 && load_acquire(&plain.seq) == seq) || retries == RATION_READ_TRIES)
			return retries;
	}
}

static void repeat_plain(uint64_t n)
{
	for (; n; n--)
		plain_write(n);
}

static const struct repeat {
	const char *name;
	void (*run)(uint64_t n);
} repeats[] = {
	{"add", repeat_add},   {"load", repeat_load},   {"plain", repeat_plain},   {"publish", repeat_publish},
	{"used", repeat_used}, {"turns", repeat_turns}, {"charge", repeat_charge}, {"return", repeat_return},
};

/* thread_run is one of the threads of the order threads. */
struct thread_run {
	pthread_t thread;
	pthread_barrier_t *start;
	void (*run)(uint64_t n);
	uint64_t n;
};

static void *thread_main(void *arg)
{
	struct thread_run *t = arg;
	pthread_barrier_wait(t->start);
	t->run(t->n);
	return NULL;
}

static double in_threads(unsigned n, void (*run)(uint64_t), uint64_t each)
{
	static struct thread_run all[MAX_THREADS];
	pthread_barrier_t start;
	pthread_barrier_init(&start, NULL, n + 1);
	for (unsigned i = 0; i < n; i++) {
		all[i] = (struct thread_run){.start = &start, .run = run, .n = each};
		if (pthread_create(&all[i].thread, NULL, thread_main, &all[i]))
			must(REGION_SYSTEM, "starting a thread");
	}
	double from = wall();
	pthread_barrier_wait(&start);
	for (unsigned i = 0; i < n; i++)
		pthread_join(all[i].thread, NULL);
	pthread_barrier_destroy(&start);
	return wall() - from;
}

/* order_repeat times n operations, in so many threads, and undoes what they charged. */
static void order_repeat(const struct repeat *what, uint64_t n, unsigned threads)
{
	threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
	n -= n % (threads * 2);
	if (what->run == repeat_return)
		charge(&slots[0], 0, RATION_DATA, n * CHARGE);
	double from = wall(), took;
	if (threads == 1) {
		what->run(n);
		took = wall() - from;
	} else
		took = in_threads(threads, what->run, n / threads);
	printf("%.9g\n", took / (double)n);
	if (what->run == repeat_charge)
		give_back(&slots[0], 0, RATION_DATA, n * CHARGE);
	for (unsigned i = 0; what->run == repeat_turns && i < 2; i++)
		give_back(&slots[i], 0, RATION_DATA, n / 2 * CHARGE);
}

static void order_slots(unsigned n)
{
	while (claimed < n) {
		claim();
		charge(&slots[claimed - 1], 0, RATION_DATA, CHARGE);
	}
	while (claimed > n)
		must(region_leave(&slots[--claimed]), "leaving a slot");
	puts("");
}

static void order_live(uint64_t n)
{
	for (; held < n; held++)
		charge(&slots[0], 0, RATION_DATA, CHARGE);
	if (held > n)
		give_back(&slots[0], 0, RATION_DATA, (held - n) * CHARGE);
	held = n;
	puts("");
}

/* write_once makes the i-th change of an endless series: charges and returns of two kinds. */
static void write_once(uint64_t i)
{
	unsigned kind = i % 2 ? RATION_MODULE : RATION_DATA;
	i % 4 < 2 ? charge(&slots[0], 0, kind, CHARGE) : give_back(&slots[0], 0, kind, CHARGE);
}

static void order_write(unsigned microseconds)
{
	puts("");
	fflush(stdout);
	for (uint64_t i = 0;; i++) {
		write_once(i);
		if (microseconds)
			usleep(microseconds);
	}
}

/* order_snapshots reads what all processes hold for a while. */
static void order_snapshots(double ns)
{
	static struct region_holding out[RATION_SLOTS];
	struct times *t = calloc(1, sizeof *t);
	const struct ration_counters *c = &base.m->header.counters;
	uint64_t reads = load_acquire(&c->reads), retries = load_acquire(&c->retries), best = load_acquire(&c->best_effort);
	unsigned torn = 0;
	for (double until = wall() + ns;;) {
		double from = wall();
		unsigned n = region_holdings(&base, 0, out, RATION_SLOTS);
		double to = wall();
		times_add(t, to - from);
		for (unsigned i = 0; i < n; i++) {
			uint64_t sum = 0;
			for (unsigned k = 0; k < RATION_KINDS; k++)
				sum += out[i].usage.kind[k];
			torn += sum != out[i].usage.total && !out[i].best_effort;
		}
		if (to > until)
			break;
	}
	times_print(t);
	printf(" %.0f %.0f %.0f %u\n", (double)(load_acquire(&c->reads) - reads), (double)(load_acquire(&c->retries) - retries),
	       (double)(load_acquire(&c->best_effort) - best), torn);
	free(t);
}

/* A thread that writes without a pause, beside one that reads. */
static uint32_t writer_stop;

static void *plain_writer(void *arg)
{
	for (uint64_t i = 0; !load32_acquire(&writer_stop); i++)
		plain_write(i);
	return arg;
}

static void *region_writer(void *arg)
{
	for (uint64_t i = 0; !load32_acquire(&writer_stop) || i % 4; i++)
		write_once(i);
	return arg;
}

static pthread_t writer_start(void *(*run)(void *))
{
	pthread_t thread;
	store32_release(&writer_stop, 0);
	if (pthread_create(&thread, NULL, run, NULL))
		must(REGION_SYSTEM, "starting a thread");
	return thread;
}

static void writer_end(pthread_t thread)
{
	store32_release(&writer_stop, 1);
	pthread_join(thread, NULL);
}

static void order_plainread(double ns)
{
	struct times *t = calloc(1, sizeof *t);
	double retries = 0;
	pthread_t writer = writer_start(plain_writer);
	for (double until = wall() + ns;;) {
		uint64_t fields[4];
		double from = wall();
		retries += plain_read(fields);
		double to = wall();
		times_add(t, to - from);
		if (to > until)
			break;
	}
	writer_end(writer);
	times_print(t);
	printf(" %.0f %.0f 0 0\n", t->n, retries);
	free(t);
}

static void order_readbeside(double ns)
{
	pthread_t writer = writer_start(region_writer);
	order_snapshots(ns);
	writer_end(writer);
}

static void order_clock(uint64_t n)
{
	struct times *t = calloc(1, sizeof *t);
	for (; n; n--) {
		double from = wall();
		times_add(t, wall() - from);
	}
	times_print(t);
	puts("");
	free(t);
}

static void order_scale(double ns, unsigned device)
{
	enum { BATCH = 1000 };
	double ops = 0, from = wall(), spent = process_cpu();
	while (wall() - from < ns) {
		for (unsigned i = 0; i < BATCH; i++)
			charge(&slots[0], device, RATION_DATA, RATION_UNIT);
		give_back(&slots[0], device, RATION_DATA, BATCH * RATION_UNIT);
		ops += BATCH + 1;
	}
	printf("%.0f %.0f %.0f %.0f\n", ops, process_cpu() - spent, from, wall());
}

/* order_hold takes bytes, and charges and returns some of them until the worker is killed. */
static void order_hold(uint64_t bytes)
{
	charge(&slots[0], 0, RATION_DATA, bytes);
	puts("");
	fflush(stdout);
	for (;;) {
		give_back(&slots[0], 0, RATION_DATA, CHARGE);
		charge(&slots[0], 0, RATION_DATA, CHARGE);
	}
}

static void order_ask(uint64_t bytes)
{
	double from = wall();
	int err = region_charge(&slots[0], 0, RATION_DATA, bytes, NULL);
	double took = wall() - from;
	if (err == REGION_REFUSED) {
		puts("refused");
		return;
	}
	must(err, "charging");
	printf("%.0f\n", took);
	give_back(&slots[0], 0, RATION_DATA, bytes);
}

/* A training step, as check/bench/step.go describes it. */
enum { FORWARD = 20, BACKWARD = 40, ALL_REDUCE = 8, OPTIMISER = 10, BURST = 5 };
static int step_lock = -1;                                     /* a file that is locked around each call, or -1 */
static pthread_mutex_t step_mutex = PTHREAD_MUTEX_INITIALIZER; /* held around it: threads share the file lock */
static uint64_t step_spent;                                    /* nanoseconds in calls, of all threads */

static void step_call(void (*change)(struct region *, unsigned, unsigned, uint64_t))
{
	double from = wall();
	if (step_lock >= 0) {
		pthread_mutex_lock(&step_mutex);
		if (flock(step_lock, LOCK_EX))
			must(REGION_SYSTEM, "locking");
	}
	change(&slots[0], 0, RATION_DATA, TENSOR);
	if (step_lock >= 0) {
		flock(step_lock, LOCK_UN);
		pthread_mutex_unlock(&step_mutex);
	}
	fetch_add(&step_spent, (uint64_t)(wall() - from));
}

static void step_all_reduce(uint64_t n)
{
	(void)n;
	step_call(charge);
}

static void order_steps(unsigned n, const char *lock)
{
	step_lock = *lock ? open(lock, O_CREAT | O_RDWR | O_CLOEXEC, 0600) : -1;
	for (const char *space = ""; n; n--, space = " ") {
		step_spent = 0;
		double from = wall();
		for (unsigned i = 1; i <= FORWARD + BACKWARD; i++) {
			step_call(charge);
			if (i % BURST == 0)
				usleep(1300);
		}
		in_threads(ALL_REDUCE, step_all_reduce, 1);
		usleep(2000);
		for (unsigned i = 1; i <= FORWARD + BACKWARD + ALL_REDUCE; i++) {
			step_call(give_back);
			if (i == OPTIMISER)
				usleep(2000);
		}
		printf("%s%.0f %.0f", space, wall() - from, (double)step_spent);
	}
	puts("");
	if (step_lock >= 0)
		close(step_lock);
}

static void order_gate(void)
{
	char byte;
	puts("");
	fflush(stdout);
	while (read(GATE, &byte, 1) > 0)
		;
}

int main(void)
{
	char *line = NULL, name[16], word[PATH_MAX];
	size_t size = 0;
	while (getline(&line, &size, stdin) > 0) {
		/* Every order is a name, and up to two words. */
		char second[PATH_MAX] = "";
		*name = *word = 0;
		sscanf(line, "%15s %4095s %4095s", name, word, second);
		uint64_t n = strtoull(word, NULL, 10), m = strtoull(second, NULL, 10);
		const struct repeat *r = repeats, *end = repeats + sizeof repeats / sizeof *repeats;
		while (r < end && strcmp(name, r->name))
			r++;
		if (r < end)
			order_repeat(r, n, (unsigned)m);
		else if (!strcmp(name, "gate"))
			order_gate();
		else if (!strcmp(name, "open"))
			order_open(word, m);
		else if (!strcmp(name, "burn"))
			order_burn((double)n);
		else if (!strcmp(name, "slots"))
			order_slots((unsigned)n);
		else if (!strcmp(name, "live"))
			order_live(n);
		else if (!strcmp(name, "write"))
			order_write((unsigned)n);
		else if (!strcmp(name, "snapshots"))
			order_snapshots((double)n);
		else if (!strcmp(name, "plainread"))
			order_plainread((double)n);
		else if (!strcmp(name, "readbeside"))
			order_readbeside((double)n);
		else if (!strcmp(name, "clock"))
			order_clock(n);
		else if (!strcmp(name, "scale"))
			order_scale((double)n, (unsigned)m % RATION_DEVICES);
		else if (!strcmp(name, "hold"))
			order_hold(n);
		else if (!strcmp(name, "ask"))
			order_ask(n);
		else if (!strcmp(name, "steps"))
			order_steps((unsigned)n, second);
		else if (!strcmp(name, "exit"))
			_exit(0);
		else {
			fprintf(stderr, "%s: no such order\n", name);
			return 2;
		}
		fflush(stdout);
	}
	while (claimed)
		must(region_leave(&slots[--claimed]), "leaving a slot");
	return 0;
}
