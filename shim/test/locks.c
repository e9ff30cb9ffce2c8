/* The check of the locks' order, which the debug build has: it aborts a thread that waits
 * for a lock out of order, or does under a lock what that lock does not permit, and no
 * other. */
#include <signal.h>

#include "../mutex.h"
#include "check.h"

static mutex locks[LOCK_LEVELS], again_lock;

static char said[256]; /* what the last child wrote to stderr */

/* aborts runs a function in a child, and reports whether it was aborted. */
static bool aborts(void (*f)(int, int), int a, int b)
{
	int status = -1, ends[2];
	EQ(pipe(ends), 0);
	pid_t pid = fork();
	if (pid == 0) {
		dup2(ends[1], STDERR_FILENO);
		signal(SIGABRT, SIG_DFL);
		f(a, b);
		_exit(0);
	}
	close(ends[1]);
	ssize_t n = read(ends[0], said, sizeof said - 1);
	said[n > 0 ? n : 0] = 0;
	close(ends[0]);
	waitpid(pid, &status, 0);
	CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT));
	return WIFSIGNALED(status);
}

static void take(int first, int second)
{
	mutex_lock(&locks[first], (enum lock_level)first);
	mutex_lock(first == second ? &again_lock : &locks[second], (enum lock_level)second);
}

static void try_second(int first, int second)
{
	mutex_lock(&locks[first], (enum lock_level)first);
	if (!mutex_try(first == second ? &again_lock : &locks[second], (enum lock_level)second))
		abort();
}

/* What was only tried for counts, too, once it is held. */
static void wait_after_try(int tried, int second)
{
	if (!mutex_try(&locks[tried], (enum lock_level)tried))
		abort();
	mutex_lock(tried == second ? &again_lock : &locks[second], (enum lock_level)second);
}

/* Released in another order than taken, the first is no longer held. */
static void released(int first, int second)
{
	mutex_lock(&locks[second], (enum lock_level)second);
	mutex_lock(&again_lock, LOCK_LEVELS - 1);
	mutex_unlock(&locks[second]);
	mutex_unlock(&again_lock);
	take(first, first + 1);
}

static void act(int level, int what)
{
	if (level)
		mutex_lock(&locks[level], (enum lock_level)level);
	lock_order_check((enum lock_act)what);
}

static void not_held(int first, int second)
{
	(void)second;
	mutex_unlock(&locks[first]);
}

int main(void)
{
	/* What each level permits, as LOCKING.md has it. */
	static const unsigned permits[LOCK_LEVELS] = {
		[0] = LOCK_CALLS_DRIVER | LOCK_CALLS_LINKER | LOCK_LOGS, /* no lock */
		[LOCK_PRIMARY_CONTEXT] = LOCK_CALLS_DRIVER | LOCK_LOGS,
		[LOCK_CONTEXT_MAKING] = LOCK_CALLS_DRIVER | LOCK_LOGS,
		[LOCK_POOL_CURRENT] = LOCK_CALLS_DRIVER | LOCK_LOGS,
		[LOCK_POOL_LIST] = LOCK_LOGS,
		[LOCK_OVERHEAD] = LOCK_CALLS_DRIVER | LOCK_LOGS,
		[LOCK_NVML] = LOCK_CALLS_DRIVER | LOCK_LOGS,
		[LOCK_DEVICE] = LOCK_CALLS_DRIVER | LOCK_LOGS,
		[LOCK_CONTEXT_TABLE] = LOCK_LOGS,
		[LOCK_RESERVE] = LOCK_LOGS,
		[LOCK_IMPORT] = LOCK_LOGS,
		[LOCK_ATTACH] = LOCK_LOGS,
		[LOCK_CANNOT] = LOCK_LOGS,
	};
	for (int first = 1; first < LOCK_LEVELS; first++) {
		for (int second = 1; second < LOCK_LEVELS; second++) {
			EQ(aborts(take, first, second), second <= first);
			EQ(aborts(try_second, first, second), false);
			EQ(aborts(wait_after_try, first, second), second <= first);
		}
		EQ(aborts(not_held, first, 0), true);
	}
	EQ(aborts(released, LOCK_PRIMARY_CONTEXT, LOCK_RESERVE), false);
	for (int level = 0; level < LOCK_LEVELS; level++)
		for (unsigned what = 1; what <= LOCK_LOGS; what *= 2)
			EQ(aborts(act, level, (int)what), !(permits[level] & what));
	EQ(aborts(take, LOCK_RESERVE, LOCK_OVERHEAD), true);
	CHECK(strstr(said, "waiting for the overhead lock while the reserve lock is held") != NULL);
	EQ(aborts(act, LOCK_POOL_LIST, LOCK_CALLS_DRIVER), true);
	CHECK(strstr(said, "a driver call while the pool list lock is held") != NULL);
	return FINISH();
}
