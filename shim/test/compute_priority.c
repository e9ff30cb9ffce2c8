/* Jobs of high and low priority on one device: which slices their contexts have, by who has work.
 * Each worker is a process in a job of its own. The processes do one step at a time, as they are
 * told, on a machine whose clock stands still meanwhile. */
#include <sys/mount.h>

#include "priority.h"

/* Puts another file in the place of the file of claims, as a program may that closes all descriptors. */
static void replace_claims(void)
{
	char name[64], path[4200];
	for (int fd = 3; fd < 1024; fd++) {
		snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(name, path, sizeof path);
		if (n > 9 && !memcmp(path + n - 9, "/priority", 9)) {
			int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
			EQ(dup2(null, fd), fd);
			close(null);
		}
	}
}

#define WAIT "cuCtxSynchronize:before"

/* Says that this process waits for its device, once the library has shown so and calls the driver. */
static void *say_waits(void *arg)
{
	unsigned held = fakegpu_held(WAIT, 1, 60000);
	if (held != 1 || write(1, "w", 1) != 1)
		_exit(1);
	fakegpu_open(WAIT);
	return arg;
}

/* A worker: l launches, w waits for a kernel that takes minutes, 1 to 3 change the job's priority, c
 * makes another context and launches in it, x closes the file of claims. */
static int work(void)
{
	char step;
	start_timed();
	CUfunction f = kernel("one"), forever = kernel("long_one");
	EQ(write(1, "r", 1), 1);
	while (read(0, &step, 1) == 1) {
		if (step == 'l')
			OK(launch(f, NULL));
		if (step == 'w') {
			pthread_t t;
			OK(launch(forever, NULL));
			fakegpu_hold(WAIT, 1);
			EQ(pthread_create(&t, NULL, say_waits, NULL), 0);
			OK(cuCtxSynchronize());
			EQ(pthread_join(t, NULL), 0);
		}
		if (step >= '1' && step <= '3')
			EQ(region_limits_with(region_here(), change_priority, &(uint64_t){(uint64_t)(step - '0')}), 0);
		if (step == 'x')
			replace_claims();
		if (step == 'c') {
			CUcontext c;
			OK(cuCtxCreate_v2(&c, 0, 0));
			later(8 * MS); /* a thread says at most every few milliseconds that it has work */
			OK(launch(kernel("one"), NULL));
			OK(cuCtxPopCurrent_v2(&c));
		}
		EQ(write(1, "d", 1), 1);
	}
	return checks_failed > 0;
}

/* One of low priority, then two, then one again: by the end of a lease, and by a death. */
static void low_ones(void)
{
	struct worker low = begin("low"), high, second;
	EQ(slice(&low), OWN); /* no other job */
	high = begin("high");
	EQ(slice(&high), HIGH);
	EQ(slice(&low), SHORT);
	second = begin("low");
	/* Each launch waits until the other process is not busy, and in doing so sets the clock forward. */
	uint64_t begun = machine_now(0);
	EQ(slice(&second), SHORT);
	CHECK(machine_now(0) - begun >= 150 * MS && machine_now(0) - begun < 250 * MS); /* the lease of the first */
	later(250 * MS);
	EQ(slice(&low), SHORT);
	EQ(slice(&second), SHORT);
	EQ(slice(&high), HIGH);
	finish_worker(&second, true);
	EQ(slice(&low), SHORT);

	/* A second context of the same process is no better than that of another one. */
	tell(&low, 'c', 'd');
	EQ(slice(&low), SEVERAL);

	/* High priority counts for a while after its last work, and no longer than it lives. */
	later(200 * MS);
	later(8 * SECOND);
	EQ(slice(&low), SHORT);
	later(3 * SECOND);
	EQ(slice(&low), OWN);
	EQ(slice(&high), HIGH);
	EQ(slice(&low), SHORT);
	finish_worker(&high, true);
	EQ(slice(&low), OWN);
	finish_worker(&low, false);
}

/* A process that waits for the device cannot renew its claim, which counts until it returns or dies. */
static void waiting(void)
{
	struct worker low = begin("low"), second = begin("low"), high = begin("high");
	EQ(slice(&high), HIGH);
	EQ(slice(&low), SHORT);
	tell(&second, 'w', 'w');
	later(5 * SECOND);
	EQ(slice(&high), HIGH);
	/* Its kernel outlasts eight turns of the other one: there are no turns for a minute. */
	uint64_t begun = machine_now(0);
	EQ(slice(&low), SEVERAL);
	CHECK(machine_now(0) - begun >= 700 * MS && machine_now(0) - begun < 920 * MS);
	begun = machine_now(0);
	for (unsigned i = 0; i < 20; i++)
		EQ(slice(&low), SEVERAL);
	EQ(machine_now(0) - begun, 20 * 8 * MS);
	finish_worker(&second, true);
	EQ(slice(&low), SHORT);
	/* One of high priority that has waited counts for as long as one that has launched. */
	char done = 0;
	tell(&high, 'w', 'w');
	later(60 * SECOND);
	EQ(slice(&low), SHORT);
	later(600 * SECOND);
	EQ(read(high.from, &done, 1), 1);
	EQ(done, 'd');
	EQ(slice(&low), SHORT);
	later(11 * SECOND);
	EQ(slice(&low), OWN);
	finish_worker(&low, false);
	finish_worker(&high, false);
}

/* A process that loses its descriptor has no claim, until it next has work. */
static void closed(void)
{
	struct worker low = begin("low"), high = begin("high");
	EQ(slice(&high), HIGH);
	EQ(slice(&low), SHORT);
	tell(&high, 'x', 'd');
	EQ(slice(&low), OWN);
	later(6 * SECOND); /* a claim is renewed when half of it has passed */
	EQ(slice(&high), HIGH);
	EQ(slice(&low), SHORT);
	finish_worker(&low, false);
	finish_worker(&high, false);
}

/* A change counts for a job that runs. */
static void changes(void)
{
	struct worker one = begin("low"), other = begin("low"), high = begin("high");
	EQ(slice(&high), HIGH);
	EQ(slice(&one), SHORT);
	EQ(slice(&other), SHORT); /* in its turn */
	later(250 * MS);
	EQ(slice(&one), SHORT);
	tell(&one, '2', 'd');
	EQ(slice(&one), OWN);
	uint64_t begun = machine_now(0);
	EQ(slice(&other), SHORT); /* the claims have gone with the priority */
	EQ(machine_now(0) - begun, 8 * MS);
	tell(&one, '1', 'd');
	EQ(slice(&one), HIGH);
	tell(&high, '3', 'd');
	EQ(slice(&high), SHORT);
	tell(&one, '3', 'd');
	EQ(slice(&one), OWN);
	EQ(slice(&high), OWN);
	finish_worker(&one, false);
	finish_worker(&other, false);
	finish_worker(&high, false);
}

/* Jobs of normal priority take no part, and two of high priority leave one of low priority 1 %. */
static void others(void)
{
	struct worker low = begin("low"), normal = begin("normal"), high = begin("high"), second = begin("high");
	EQ(slice(&normal), OWN);
	EQ(slice(&low), OWN);
	EQ(slice(&high), HIGH);
	EQ(slice(&second), HIGH);
	EQ(slice(&low), 147);
	EQ(slice(&normal), OWN);
	finish_worker(&low, false);
	finish_worker(&normal, false);
	finish_worker(&high, false);
	finish_worker(&second, false);
}

/* The table of docs/compute.md, for shares and caps. */
static void composed(void)
{
	enum { SHARE = 6000, FLOOR = 2794, ONE_PERCENT = 105 };
	struct worker low = begin_with("low", "CUDA_DEVICE_SM_LIMIT", "30"), capped = begin_with("low", "RATION_COMPUTE_MAX", "50");
	EQ(slice(&low), SHARE);
	EQ(slice(&capped), OWN);
	later(250 * MS);
	struct worker high = begin_with("high", "CUDA_DEVICE_SM_LIMIT", "30");
	EQ(slice(&high), SHARE);
	EQ(slice(&low), FLOOR);
	later(250 * MS);
	EQ(slice(&capped), ONE_PERCENT);
	later(250 * MS);
	EQ(slice(&capped), ONE_PERCENT);
	EQ(slice(&high), SHARE);
	struct worker normal = begin_with("normal", "CUDA_DEVICE_SM_LIMIT", "30");
	EQ(slice(&normal), SHARE);
	struct worker hami = begin_with("", "CUDA_TASK_PRIORITY", "1");
	later(250 * MS);
	EQ(slice(&hami), ONE_PERCENT);
	finish_worker(&low, false);
	finish_worker(&capped, false);
	finish_worker(&high, false);
	finish_worker(&normal, false);
	finish_worker(&hami, false);
}

/* The share of a job of low priority is what it gets beside one of high priority that never pauses. */
static void floor_is_kept(void)
{
	static const char *const shares[] = {"1", "10", "30", "50", "90"};
	for (unsigned i = 0; i < 5; i++) {
		struct worker low = begin_with("low", "CUDA_DEVICE_SM_LIMIT", shares[i]), high = begin("high");
		EQ(slice(&high), HIGH);
		double us = (double)slice(&low), part = (us - 40) / (us + HIGH + 2 * 180), share = atof(shares[i]) / 100;
		share = share > 0.5 ? 0.5 : share;
		CHECK(part >= share && part < share + 0.005);
		finish_worker(&low, false);
		finish_worker(&high, false);
		later(11 * SECOND);
	}
}

/* So it does beside one whose own share gives it longer slices, and so does the floor of 1 %. */
static void floor_beside_share(void)
{
	static const char *const lows[] = {"", "10", "30"}, *const highs[] = {"30", "60", "100"};
	for (unsigned i = 0; i < 9; i++) {
		struct worker low = begin_with("low", i % 3 ? "CUDA_DEVICE_SM_LIMIT" : NULL, lows[i % 3]);
		struct worker high = begin_with("high", "CUDA_DEVICE_SM_LIMIT", highs[i / 3]);
		double long_us = (double)slice(&high), us = (double)slice(&low), part = (us - 40) / (us + long_us + 2 * 180);
		double share = i % 3 ? atof(lows[i % 3]) / 100 : 0.01;
		EQ((uint64_t)long_us, (uint64_t)(atof(highs[i / 3]) * 200));
		CHECK(part >= share && part < share + 0.005);
		finish_worker(&low, false);
		finish_worker(&high, false);
		later(11 * SECOND);
	}
}

/* A process that locks all of the file makes jobs of low priority as fast as normal ones. */
static void liar(void)
{
	char path[4200];
	struct worker low = begin("low"), high = begin("high");
	struct flock all = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
	EQ(slice(&high), HIGH);
	EQ(slice(&low), SHORT);
	snprintf(path, sizeof path, "%s/priority", getenv("RATION_DIR"));
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	EQ(open(path, O_WRONLY | O_CLOEXEC) >= 0 && geteuid() != 0, 0); /* nobody can write it */
	EQ(fcntl(fd, F_SETLK, &all), 0);
	EQ(slice(&low), OWN);
	struct worker late = begin("low"); /* finds no seat, but finds one later */
	EQ(slice(&late), OWN);
	close(fd);
	EQ(slice(&low), SHORT);
	later(6 * SECOND);
	EQ(slice(&high), HIGH);
	EQ(slice(&late), SHORT);
	finish_worker(&late, false);
	finish_worker(&low, false);
	finish_worker(&high, false);
}

/* Under a policy. */

enum { ALLOWED = 4001, DENIED = 4002 };

static void make_file(const char *path)
{
	int fd = open(path, O_CREAT | O_RDONLY | O_CLOEXEC, 0444);
	CHECK(fd >= 0);
	close(fd);
}

/* A machine of this process's own where a policy is in force that allows one user high priority; false
 * if it may not make one. */
static bool make_policy(void)
{
	if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
	    mount("tmpfs", "/run", "tmpfs", 0, "mode=755") != 0 || mount("tmpfs", "/etc", "tmpfs", 0, "mode=755") != 0)
		return false;
	EQ(mkdir("/etc/ration", 0755), 0);
	make_file("/etc/ration/in-force.toml");
	EQ(mkdir("/run/ration", 0755), 0);
	EQ(mkdir("/run/ration/high-priority", 0755), 0);
	make_file("/run/ration/high-priority/4001");
	return true;
}

enum manner { LOCKS, BY_OPEN_FILE, UNDUMPABLE, INSIDE_NAMESPACE };

/* Finds the claim of a process that is not that of its seat, from a position to another. The kernel tells
 * of any lock there. */
static bool find_claim(int fd, pid_t pid, off_t from, off_t to, struct flock *claim)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = from, .l_len = to - from};
	if (from >= to || fcntl(fd, F_GETLK, &l) != 0 || l.l_type == F_UNLCK)
		return false;
	*claim = l;
	return (l.l_pid == pid && l.l_len > 1) || find_claim(fd, pid, from, l.l_start, claim) ||
	       find_claim(fd, pid, l.l_start + l.l_len, to, claim);
}

/* The slice of a job of low priority beside a process of a user that claims high priority. It copies the
 * claim of a real job, which has ended by then: on another seat, and for half an hour. */
static uint64_t beside(const struct worker *low, uid_t uid, enum manner how)
{
	char path[4200], ready = 0;
	int to[2], from[2];
	struct flock l;
	struct worker high = begin("high");
	EQ(slice(&high), HIGH);
	snprintf(path, sizeof path, "%s/priority", getenv("RATION_DIR"));
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	EQ(find_claim(fd, high.pid, 0, INT64_MAX, &l), true);
	finish_worker(&high, true);
	EQ(pipe2(to, O_CLOEXEC), 0);
	EQ(pipe2(from, O_CLOEXEC), 0);
	if (how == INSIDE_NAMESPACE)
		EQ(unshare(CLONE_NEWPID), 0);
	pid_t pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(to[1]);
		EQ(setresgid(uid, uid, uid) | setresuid(uid, uid, uid), 0);
		prctl(PR_SET_DUMPABLE, how != UNDUMPABLE);
		l = (struct flock){
			.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = l.l_start ^ (off_t)1 << 32, .l_len = l.l_len + 1800000};
		ready = fcntl(fd, how == BY_OPEN_FILE ? F_OFD_SETLK : F_SETLK, &l) == 0;
		if (write(from[1], &ready, 1) != 1 || read(to[0], &ready, 1) != 0)
			_exit(1);
		_exit(0);
	}
	EQ(read(from[0], &ready, 1), 1);
	EQ(ready, 1);
	later(SECOND + 250 * MS);
	uint64_t us = slice(low);
	close(fd);
	close(to[1]);
	waitpid(pid, NULL, 0);
	close(to[0]);
	close(from[0]);
	close(from[1]);
	EQ(slice(low), OWN);
	return us;
}

/* A claim of high priority counts if the policy allows it its user. */
static void under_policy(void)
{
	struct worker low = begin("low");
	EQ(slice(&low), OWN);
	EQ(beside(&low, DENIED, LOCKS), SHORT); /* there is no policy */
	finish_worker(&low, false);
	if (!make_policy()) {
		fprintf(stderr, "compute_priority: no policy: this needs root, and a mount namespace\n");
		return;
	}
	low = begin("low");
	EQ(slice(&low), OWN);
	EQ(beside(&low, ALLOWED, LOCKS), SHORT);
	EQ(beside(&low, 0, LOCKS), SHORT);
	EQ(beside(&low, DENIED, LOCKS), OWN);
	EQ(beside(&low, DENIED, UNDUMPABLE), OWN);
	EQ(beside(&low, ALLOWED, BY_OPEN_FILE), OWN);
	EQ(unlink("/run/ration/high-priority/4001"), 0);
	EQ(beside(&low, ALLOWED, LOCKS), OWN);
	finish_worker(&low, false);
	low = begin("low");
	EQ(slice(&low), OWN);
	EQ(beside(&low, DENIED, INSIDE_NAMESPACE), OWN);
	finish_worker(&low, false);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "work"))
		return work();
	start_timed();
	low_ones();
	waiting();
	closed();
	changes();
	others();
	composed();
	floor_is_kept();
	floor_beside_share();
	liar();
	under_policy();
	return FINISH();
}
