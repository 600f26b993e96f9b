"""Slots, batches and the step that advances all requests. Knows tokens and logits, not JSON.

Start with `scheduler` (one step) and `slot` (what a request is while it runs). Then, by topic:

    who gets a slot   admission, constraint_queue; of prompts: prompt_memory, checkpoints
    who takes part    turns, adapter_turns
    drafts            drafting, draft_plan, model_drafting, ask_timer, proposal, grammar_drafts,
                      speculation_policy; the speculators: guarded_speculator, draft_faults,
                      observed_engine
    the batch         batching, prompt_order, warm_up
    after the decode  commit, rollback, context_shift, prompt_scores, owned_tokens; deferred
    counts            draft_counts, speculation_stats, counters, guess_log, report, request_log
    the processes     the server's side: worker, client, transport, sender, reader; the engine's:
                      loop; what is sent: request, messages
    beside that       embedding, slot_actions, kept_slots, corpus, memory
"""
