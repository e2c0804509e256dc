/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs, what is instantiated from them, launches, and the user objects that they hold. A launch runs the first branch
 * on the stream's thread and each other one on a thread of its own; launches of one executable graph follow each other.
 */
#include "tests/fake_cuda/fake.h"
#include "tests/sanitized.h"

#include <stdlib.h>
#include <string.h>

#define MOST_GRAPHS  REPEATS(16384, 1024) /* LeakSanitizer reads all of the tables as each process ends */
#define MOST_OBJECTS REPEATS(65536, 8192)

struct CUuserObject_st {
	unsigned references;
	CUhostFn destroy;
	void *argument;
	CUuserObject next; /* to be destroyed */
};

struct CUgraphExec_st {
	bool alive;
	unsigned under_way;
	struct fake_body body;
	pthread_mutex_t launching; /* its launches go into their streams in the order of their numbers */
	uint64_t launched;         /* under that */
	_Atomic uint64_t completed;
};

/* All under the lock. */
static struct CUgraph_st graphs[MOST_GRAPHS];
static struct CUgraphExec_st executables[MOST_GRAPHS];
static struct CUuserObject_st objects[MOST_OBJECTS];
static unsigned ngraphs, nexecutables, nobjects;

/* ---- user objects ---- */

static pthread_mutex_t dead_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t dead_come = PTHREAD_COND_INITIALIZER;
static CUuserObject first_dead, last_dead;
static bool destroys;

static void *destroy_objects(void *unused)
{
	(void)unused;
	fake_in_destructor = true;
	for (;;) {
		pthread_mutex_lock(&dead_lock);
		while (!first_dead)
			pthread_cond_wait(&dead_come, &dead_lock);
		CUuserObject object = first_dead;
		first_dead = object->next;
		pthread_mutex_unlock(&dead_lock);
		object->destroy(object->argument);
	}
	return NULL;
}

static void destroy_soon(CUuserObject object)
{
	pthread_t thread;
	pthread_mutex_lock(&dead_lock);
	if (!destroys && !pthread_create(&thread, NULL, destroy_objects, NULL)) {
		pthread_detach(thread);
		destroys = true;
	}
	object->next = NULL;
	if (first_dead)
		last_dead->next = object;
	else
		first_dead = object;
	last_dead = object;
	pthread_cond_signal(&dead_come);
	pthread_mutex_unlock(&dead_lock);
}

static bool is_object(CUuserObject object)
{
	size_t offset = (size_t)((char *)object - (char *)objects);
	return offset < sizeof objects && offset % sizeof *objects == 0 && object->references;
}

static void release_object(CUuserObject object, unsigned count)
{
	object->references -= count;
	if (!object->references)
		destroy_soon(object);
}

CUresult cuUserObjectCreate(CUuserObject *made, void *argument, CUhostFn destroy, unsigned int references,
                                    unsigned int flags)
{
	CUresult refused = fake_enter();
	if (refused || !made || !destroy || !references || references > INT32_MAX ||
	    flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&fake_lock);
	if (nobjects < MOST_OBJECTS) {
		*made = &objects[nobjects++];
		**made = (struct CUuserObject_st){.references = references, .destroy = destroy, .argument = argument};
	} else {
		refused = CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
	CUresult refused = fake_enter();
	if (refused)
		return refused;
	pthread_rwlock_wrlock(&fake_lock);
	if (!count || !is_object(object) || count > object->references)
		refused = CUDA_ERROR_INVALID_VALUE;
	else
		release_object(object, count);
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

static CUresult hold_object(struct fake_body *body, CUuserObject object)
{
	CUuserObject *larger = realloc(body->objects, (body->nobjects + 1) * sizeof(*larger));
	if (!larger)
		return CUDA_ERROR_OUT_OF_MEMORY;
	body->objects = larger;
	body->objects[body->nobjects++] = object;
	return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags)
{
	CUresult refused = fake_enter();
	if (refused)
		return refused;
	pthread_rwlock_wrlock(&fake_lock);
	bool moves = flags == CU_GRAPH_USER_OBJECT_MOVE;
	if (!count || (flags && !moves) || !fake_graph_is(graph) || !is_object(object) ||
	    (moves && count > object->references))
		refused = CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; !refused && i < count; i++) {
		refused = hold_object(&graph->body, object);
		if (!refused && !moves)
			object->references++;
	}
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

CUresult fake_cuda_keep(CUstream stream, void (*forget)(void *argument), void *argument)
{
	CUstreamCaptureStatus status;
	CUgraph graph = NULL;
	CUuserObject object;
	CUresult refused = cuStreamGetCaptureInfo(stream, &status, NULL, &graph, NULL, NULL, NULL);
	if (refused || !graph)
		return refused ? refused : CUDA_ERROR_ILLEGAL_STATE;
	refused = cuUserObjectCreate(&object, argument, forget, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
	return refused ? refused : cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
}

/* ---- graphs ---- */

static void end_body(struct fake_body *body)
{
	for (unsigned i = 0; i < body->nbranches; i++)
		free(body->branches[i].operations);
	for (unsigned i = 0; i < body->nobjects; i++)
		release_object(body->objects[i], 1);
	free(body->objects);
	memset(body, 0, sizeof *body);
}

/* On an error `to` is to be ended. Each copy holds the user objects too. */
static CUresult copy_body(struct fake_body *to, const struct fake_body *from)
{
	CUresult refused = CUDA_SUCCESS;
	for (unsigned i = 0; !refused && i < from->nbranches; i++) {
		const struct fake_branch *branch = &from->branches[i];
		struct fake_operation *operations = malloc((branch->count + 1) * sizeof *operations);
		if (!operations)
			return CUDA_ERROR_OUT_OF_MEMORY;
		if (branch->count)
			memcpy(operations, branch->operations, branch->count * sizeof *operations);
		to->branches[to->nbranches++] = (struct fake_branch){
		        .stream = branch->stream, .operations = operations, .count = branch->count};
	}
	to->nexternals = from->nexternals;
	for (unsigned i = 0; !refused && i < from->nobjects; i++) {
		refused = hold_object(to, from->objects[i]);
		if (!refused)
			from->objects[i]->references++;
	}
	return refused;
}

CUgraph fake_graph_new(void)
{
	if (ngraphs == MOST_GRAPHS)
		return NULL;
	graphs[ngraphs].alive = true;
	return &graphs[ngraphs++];
}

bool fake_graph_is(CUgraph graph)
{
	size_t offset = (size_t)((char *)graph - (char *)graphs);
	return offset < sizeof graphs && offset % sizeof *graphs == 0 && graph->alive;
}

unsigned fake_graph_place(CUgraph graph)
{
	return (unsigned)(graph - graphs);
}

void fake_graph_end(CUgraph graph)
{
	graph->alive = false;
	end_body(&graph->body);
}

static bool is_executable(CUgraphExec executable)
{
	size_t offset = (size_t)((char *)executable - (char *)executables);
	return offset < sizeof executables && offset % sizeof *executables == 0 && executable->alive;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags)
{
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	if (refused || !made || flags & ~15ull)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&fake_lock);
	if (!fake_graph_is(graph) || graph->captures)
		refused = CUDA_ERROR_INVALID_VALUE;
	else if (nexecutables == MOST_GRAPHS)
		refused = CUDA_ERROR_OUT_OF_MEMORY;
	else
		refused = copy_body(&executables[nexecutables].body, &graph->body);
	if (!refused) {
		*made = &executables[nexecutables++];
		pthread_mutex_init(&(*made)->launching, NULL);
		(*made)->alive = true;
	}
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

CUresult cuGraphDestroy(CUgraph graph)
{
	CUresult refused = fake_enter();
	if (refused)
		return refused;
	pthread_rwlock_wrlock(&fake_lock);
	if (fake_graph_is(graph) && !graph->captures)
		fake_graph_end(graph);
	else
		refused = CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

CUresult cuGraphExecDestroy(CUgraphExec executable)
{
	CUresult refused = fake_enter();
	if (refused)
		return refused;
	pthread_rwlock_wrlock(&fake_lock);
	if (is_executable(executable)) {
		executable->alive = false;
		if (!executable->under_way)
			end_body(&executable->body);
	} else {
		refused = CUDA_ERROR_INVALID_VALUE;
	}
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

/* ---- externals ---- */

/* In the order of the host's calls: a launch's waits are for what the events are then, and its records replace that. */
static CUresult mark_externals(const struct fake_body *body, enum fake_operation_kind kind, struct fake_mark **marks)
{
	bool there = true;
	for (unsigned branch = 0; branch < body->nbranches; branch++)
		for (unsigned i = 0; i < body->branches[branch].count; i++) {
			const struct fake_operation *operation = &body->branches[branch].operations[i];
			if (operation->kind != kind)
				continue;
			struct fake_mark **mark = &marks[operation->value];
			there &= kind == FAKE_EXTERNAL_WAIT ? fake_event_look(operation->event, mark)
			                                    : (*mark = fake_event_record(operation->event)) != NULL;
		}
	if (!there) /* an event was destroyed that the graph still names */
		fake_misused();
	return there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void execute_external(CUcontext context, const struct fake_operation *operation, struct fake_mark **marks)
{
	struct fake_operation moment = {.mark = marks[operation->value]};
	moment.kind = operation->kind == FAKE_EXTERNAL_WAIT ? FAKE_AWAIT_MARK : FAKE_MARK;
	marks[operation->value] = NULL;
	if (moment.mark)
		fake_execute(context, &moment);
}

/* A record that was not run, as the launch was refused, is past for those that wait for it. */
static void end_externals(const struct fake_body *body, struct fake_mark **marks)
{
	for (unsigned branch = 0; marks && branch < body->nbranches; branch++)
		for (unsigned i = 0; i < body->branches[branch].count; i++) {
			const struct fake_operation *operation = &body->branches[branch].operations[i];
			if (operation->kind == FAKE_EXTERNAL_RECORD && marks[operation->value])
				fake_mark_reach(marks[operation->value]);
		}
	for (unsigned i = 0; marks && i < body->nexternals; i++)
		fake_mark_drop(marks[i]);
	free(marks);
}

/* ---- launches ---- */

struct run {
	const struct fake_body *body;
	CUcontext context;
	struct fake_mark **marks; /* of its externals: NULL once they are past */
	_Atomic unsigned done[FAKE_MOST_BRANCHES]; /* operations of each branch */
};

struct branch_run {
	struct run *run;
	unsigned branch;
	pthread_t thread;
};

static void *run_branch(void *argument)
{
	struct branch_run *mine = argument;
	struct run *run = mine->run;
	const struct fake_branch *branch = &run->body->branches[mine->branch];
	for (unsigned i = 0; i < branch->count; i++) {
		const struct fake_operation *operation = &branch->operations[i];
		unsigned turn = 0;
		if (operation->kind == FAKE_AWAIT_BRANCH)
			while (atomic_load_explicit(&run->done[operation->flags], memory_order_acquire) <
			       operation->value)
				fake_pause(&turn);
		else if (operation->kind == FAKE_EXTERNAL_WAIT || operation->kind == FAKE_EXTERNAL_RECORD)
			execute_external(run->context, operation, run->marks);
		else
			fake_execute(branch->stream->context, operation);
		atomic_store_explicit(&run->done[mine->branch], i + 1, memory_order_release);
	}
	return NULL;
}

static void run_body(CUcontext context, const struct fake_body *body, struct fake_mark **marks)
{
	struct run run = {.body = body, .context = context, .marks = marks};
	struct branch_run branches[FAKE_MOST_BRANCHES];
	bool started = true;
	unsigned count = 0;
	for (; started && count < body->nbranches; count++) {
		branches[count] = (struct branch_run){.run = &run, .branch = count};
		started = !count || !pthread_create(&branches[count].thread, NULL, run_branch, &branches[count]);
	}
	if (!started) { /* the branches that run wait for marks of the others: let them pass */
		count--;
		atomic_store_explicit(&context->error, CUDA_ERROR_OUT_OF_MEMORY, memory_order_relaxed);
		for (unsigned i = count; i < body->nbranches; i++)
			atomic_store_explicit(&run.done[i], UINT32_MAX, memory_order_release);
	}
	if (count)
		run_branch(&branches[0]);
	for (unsigned i = 1; i < count; i++)
		pthread_join(branches[i].thread, NULL);
}

static void launch_over(CUgraphExec executable)
{
	pthread_rwlock_wrlock(&fake_lock);
	if (!--executable->under_way && !executable->alive)
		end_body(&executable->body);
	pthread_rwlock_unlock(&fake_lock);
}

void fake_launch_run(CUcontext context, const struct fake_operation *operation)
{
	CUgraphExec executable = operation->launched;
	unsigned turn = 0;
	while (atomic_load_explicit(&executable->completed, memory_order_acquire) != operation->value)
		fake_pause(&turn);
	run_body(context, &executable->body, operation->argument);
	end_externals(&executable->body, operation->argument);
	atomic_store_explicit(&executable->completed, operation->value + 1, memory_order_release);
	launch_over(executable);
}

bool fake_launch_spins(CUgraphExec executable)
{
	bool spins = false, waits = false;
	for (unsigned i = 0; i < executable->body.nbranches; i++)
		for (unsigned at = 0; at < executable->body.branches[i].count; at++) {
			const struct fake_operation *operation = &executable->body.branches[i].operations[at];
			spins |= operation->kind == FAKE_SPIN || (operation->kind == FAKE_KERNEL && operation->flags);
			waits |= operation->kind == FAKE_WAIT;
		}
	return spins && !waits;
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream)
{
	CUresult refused = fake_enter();
	if (refused)
		return refused;
	pthread_rwlock_wrlock(&fake_lock);
	if (is_executable(executable))
		executable->under_way++; /* it stays, destroyed or not */
	else
		refused = CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_unlock(&fake_lock);
	if (refused)
		return refused;
	struct fake_mark **marks = calloc(executable->body.nexternals + 1, sizeof *marks);
	pthread_mutex_lock(&executable->launching);
	struct fake_operation launch = {
	        .kind = FAKE_GRAPH, .launched = executable, .value = executable->launched, .argument = marks};
	refused = marks ? mark_externals(&executable->body, FAKE_EXTERNAL_WAIT, marks) : CUDA_ERROR_OUT_OF_MEMORY;
	if (!refused)
		refused = mark_externals(&executable->body, FAKE_EXTERNAL_RECORD, marks);
	if (!refused)
		refused = fake_submit(stream, &launch, 1);
	executable->launched += !refused;
	pthread_mutex_unlock(&executable->launching);
	if (refused) {
		end_externals(&executable->body, marks);
		launch_over(executable);
	}
	return refused;
}
