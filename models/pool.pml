/* A pool's charge (shim/PROTOCOLS.md): what the driver has reserved for a pool, while threads allocate from it
 * and the driver makes it smaller.
 *
 * REQUESTS threads allocate one unit each, and may free it. The pool grows by what it lacks, and PIECES times by a unit more
 * although it has room. SHRINKS threads each wait for the device, when the pool may lose a unit that is not in use, and look
 * at the pool afterwards. What a request makes the pool grow by beyond the limit is undone; the driver may let go of it or
 * not, and what it keeps is charged by force.
 *
 * All of them are threads of one process: its death ends all of them, and what they hold is then the reaper's (docs/protocols.md, *The ledger*).
 * A thread that is stopped is one that the search does not run. */

#ifndef REQUESTS
#define REQUESTS 2
#endif
#ifndef SHRINKS
#define SHRINKS 1
#endif
#ifndef PIECES
#define PIECES 1
#endif
#ifndef LIMIT
#define LIMIT 3
#endif
#ifndef START
#define START 1			/* units that are reserved, charged and free at first */
#endif

short reserved = START;		/* the driver's: of that, used units are handed out */
short used;
byte pieces = PIECES;

short charged = START;		/* in the ledger */
short forced;			/* of that, beyond the limit, as the driver does not let go of it */
short seen = START;		/* charged, and reserved when the driver was last asked */
short announced;		/* granted to requests under way, and what one of them has found and asks for */
short promised;			/* handed out, or wanted by requests under way */
byte requests;			/* under way */
byte changes;
bool owed;			/* the charge was not lowered for a request's sake: the last one does */
bool locked;
byte running;

short unforeseen;		/* what the pool grew by although it had room, since no request was under way */
short ever_unforeseen;		/* the same, since the beginning */
short found;			/* what was charged for that afterwards */

#define lock()   atomic { !locked -> locked = true }
#define unlock() locked = false

inline check()
{
	if :: requests == 0 -> unforeseen = 0 :: else fi;
	assert(reserved <= charged + unforeseen);	/* no growth is uncharged but what could not be foreseen */
	assert(charged - forced <= LIMIT);		/* nothing was granted that was not asked for */
	assert(found <= ever_unforeseen)		/* nothing was charged twice */
}

/* What must stay charged for the sake of requests under way, others than the one that ends here. */
#ifdef NO_FLOOR
#define floor(ends) 0
#else
#define floor(ends) (requests > ends -> promised : 0)
#endif

/* Asks the driver, and ends what was announced as mine; and the request, if it ends here and has found nothing. The answer
 * counts only if nothing has changed since: otherwise it is a reason to charge more, and none to charge less. Leaves in back
 * what is to be returned, or in more what is to be charged, which is announced until then. A look that may not charge
 * more (raises) leaves that to the requests under way. */
inline settle(mine, ends, raises)
{
	do
	:: before = changes;
	   answer = reserved;
	   lock();
	   current = (before == changes);
#ifdef UNCHECKED
	   current = true;
#endif
	   if
#ifndef NO_DEBT
	   :: owed && requests <= ends -> owed = false; unlock()
	   :: !(owed && requests <= ends) && !current && !(ends == 1 && mine == 0 && answer >= seen && answer <= seen + announced) ->
#else
	   :: !current && !(ends == 1 && mine == 0 && answer >= seen && answer <= seen + announced) ->
#endif
		unlock()
	   :: else ->
		d_step {
			back = 0;
			more = 0;
			old = seen + mine;
			others = announced - mine;
#ifdef RAISED_TWICE
			others = 0;
#endif
			target = old;
			if
			:: answer > old + others && (raises || requests == 0) -> more = answer - old - others
			:: current && answer < old ->
				target = (answer > floor(ends) -> answer : floor(ends));
				target = (target < old -> target : old)
			:: else
			fi;
			prior = seen;
			seen = target
		};
		/* A request that has come meanwhile, and has found the old number, is found here, and the end of a promise. */
		if
#ifndef FLOOR_ONCE
		:: target < old && (changes != before || target < floor(ends)) -> seen = prior; unlock()
#endif
		:: else ->
			d_step {
				announced = announced - mine + more;
				owed = owed || (current && target > answer);
				back = old - target;
#ifdef SILENT_END
				if :: mine > 0 || more > 0 || back > 0 -> changes++ :: else fi;
#else
				changes++;
#endif
				if :: ends == 1 && more == 0 -> requests-- :: else fi
			};
			unlock();
			break
		fi
	   fi
	od;
	skip;
	d_step {
		charged = charged - back;
		forced = (forced > back -> forced - back : 0);
		check()
	}
}

/* Charges by force what was found, and asks the driver again. */
inline force(ends)
{
	do
	:: more > 0 ->
		d_step { charged = charged + more; forced = forced + more; found = found + more };
		hold = more;
		settle(hold, ends, true)
	:: else -> break
	od
}

/* What is no longer promised may have made the pool grow, in a request that is still under way: an answer from before counts
 * no more. */
inline keep_no_promise()
{
#ifndef SILENT_FREE
	changes++;
#endif
	promised--
}

proctype request()
{
	short growth = 0, answer, back, more, hold, others, old, prior, target, grown, want;
	byte before;
	bool ok, current;
	requests++;
	promised++;
	/* Without the lock: this number, and then what is promised, which others may have raised meanwhile. */
#ifdef PROMISED_FIRST
	want = promised;
	if
	:: want <= seen
#else
	want = seen;
	if
	:: promised <= want
#endif
	:: else ->
		lock();
		d_step {
			growth = promised - seen - announced;
			growth = (growth < 0 -> 0 : (growth > 1 -> 1 : growth))
		};
		unlock()
	fi;
	if
	:: growth > 0 ->
		d_step { ok = charged + growth <= LIMIT; if :: ok -> charged = charged + growth :: else fi };
		if
		:: !ok ->
			settle(0, 1, true);
			force(1);
			keep_no_promise();
			goto end
		:: else ->
			lock(); announced = announced + growth; unlock()
		fi
	:: else
	fi;
	/* The driver, without a lock. */
	atomic {
		used++;
		if
		:: used > reserved -> reserved = used
		:: used <= reserved && pieces > 0 ->
			pieces--;
			reserved++;
			unforeseen++;
			ever_unforeseen++
		:: used <= reserved
		fi;
		d_step { check() }
	};
	do
	:: settle(growth, 1, true);
	   growth = more;
	   if :: more == 0 -> break :: else fi;
	   d_step { ok = charged + more <= LIMIT; if :: ok -> charged = charged + more; found = found + more :: else fi };
	   if
#ifdef GRANT_UNASKED
	   :: ok -> lock(); d_step { announced = announced - more; seen = seen + more; changes++; requests-- }; unlock(); break
#else
	   :: ok
#endif
	   :: else ->
		/* Undone: the driver lets go of it at once, or later. What it keeps is charged by force. */
		lock(); d_step { announced = announced - growth; changes++ }; unlock();
		atomic { used--; if :: reserved > used -> reserved-- :: true fi };
		settle(0, 1, true);
		force(1);
		keep_no_promise();
		goto end
	   fi
	od;
	if
	:: true -> used--; keep_no_promise()
	:: true
	fi;
end:	skip;
	d_step { check(); running-- }
}

proctype shrink()
{
	short answer, back, more, hold, others, old, prior, target;
	byte before;
	bool current;
	atomic { if :: reserved > used -> reserved-- :: true fi };
#ifdef LOOK_RAISES
	settle(0, 0, true);
#else
	settle(0, 0, false);
#endif
	force(0);
	running--
}

init {
	byte n;
	atomic {
		running = REQUESTS + SHRINKS;
		n = 0;
		do :: n < REQUESTS -> run request(); n++ :: else -> break od
		n = 0;
		do :: n < SHRINKS -> run shrink(); n++ :: else -> break od
	}
	running == 0;
	atomic {
		assert(announced == 0 && requests == 0);
		assert(seen == reserved);
		assert(charged == reserved)
	}
}
