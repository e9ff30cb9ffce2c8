/* Claims of one namespace, admitted by plugins of several nodes (kube/plugin/quota.go).
 *
 * A namespace may have BOUND, and each of CLAIMS claims wants one of it. For each claim, ROUNDS times: the scheduler allocates it, a
 * plugin admits and prepares it, it runs, ends, and is deallocated. The kubelet may have a claim prepared again while it runs, REPEATS
 * times. A plugin dies up to DEATHS times before any write; the kubelet calls again, or gives up. The API server has the claims
 * and the list of admitted ones, reads each as it is at one moment, and refuses to write a list that has changed since it was read.
 */

#ifndef CLAIMS
#define CLAIMS 3
#endif
#ifndef BOUND
#define BOUND 1
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef REPEATS
#define REPEATS 1
#endif

#define BIT(n) (1 << (n))

byte allocated;			/* the claims, a bit each */
byte admitted;			/* the list */
byte version;			/* of the list */
byte running;			/* how many claims run */
byte deaths, repeats;

#ifdef BY_ORDER			/* those made earlier count, and the list does not */
#define COUNTS(n) (listed & BIT(n) && n < own)
#else
#define COUNTS(n) (listed & seen & BIT(n) && n != own)
#endif

#ifdef NO_VERSION
#define SAME true
#else
#define SAME (version == read)
#endif

#ifdef EQUAL_WRITE		/* to write what is there changes nothing */
#define WRITTEN (admitted != ((seen & listed) | BIT(own)))
#else
#define WRITTEN true
#endif

/* A step of a plugin. It dies instead. */
#define STEP(what) if :: atomic { what } :: atomic { deaths < DEATHS -> deaths++; goto dead } fi

proctype caller(byte own)
{
	byte round, seen, listed, read, sum, i;
	bool runs;

	do
	:: round < ROUNDS ->
	   round++;
	   allocated = allocated | BIT(own);
again:
#ifdef LIST_FIRST
	   listed = allocated;
#endif
	   atomic { seen = admitted; read = version };
#ifndef LIST_FIRST
	   listed = allocated;
#endif
	   d_step {
	      sum = 1; i = 0;
	      do
	      :: i < CLAIMS -> sum = (COUNTS(i) -> sum + 1 : sum); i++
	      :: else -> break
	      od;
	      i = 0
	   };
	   if
	   :: sum > BOUND && runs -> goto end	/* another pod of the claim is refused */
	   :: sum > BOUND && !runs -> goto again
	   :: sum > BOUND && !runs -> goto deallocate
	   :: else
	   fi;
	   if
	   :: atomic {
	         SAME ->
	         version = (WRITTEN -> version + 1 : version);
	         admitted = (seen & listed) | BIT(own)
	      }
	   :: !SAME -> goto again
	   :: atomic { deaths < DEATHS -> deaths++; goto dead }
	   fi;
	   STEP(running = (runs -> running : running + 1); runs = true; assert(running <= BOUND));
	   if
	   :: atomic { repeats < REPEATS -> repeats++ }; goto again
	   :: goto end
	   fi;
dead:
	   if
	   :: goto again
	   :: runs -> goto end
	   :: !runs -> goto deallocate
	   fi;
end:
	   atomic { running--; runs = false };
deallocate:
	   atomic { allocated = allocated & ~BIT(own); seen = 0; listed = 0; read = 0; sum = 0 }
	:: else -> break
	od
}

init {
	byte i;

	atomic {
		do
		:: i < CLAIMS -> run caller(i); i++
		:: else -> break
		od
	};
	(_nr_pr == 1);
	assert(running == 0 && allocated == 0)
}
