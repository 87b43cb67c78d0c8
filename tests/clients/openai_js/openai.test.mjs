// OpenAI's JavaScript client against the server at TANDEM_URL. tests/clients/openai_js_test.py starts it and runs this file.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const QUESTION = 'What does "tandem" mean?';
const chat = { model: "tandem", messages: [{ role: "user", content: QUESTION }], temperature: 0 };
const client = (options = {}) =>
  new OpenAI({ baseURL: `${process.env.TANDEM_URL}/v1`, apiKey: process.env.TANDEM_KEY, maxRetries: 0, ...options });

// A model as small as the embedded one may write line ends until its tokens are used up.
const compact = (format) => {
  format.json_schema.schema["x-guidance"] = { whitespace_flexible: false };
  return format;
};
const answer = z.object({ kind: z.enum(["noun", "verb"]), known: z.boolean() });

test("a chat and its stream agree", async () => {
  const whole = await client().chat.completions.create(chat);
  assert.match(whole.id, /^chatcmpl-/);
  assert.equal(whole.choices[0].finish_reason, "stop");
  let text = "";
  let usage;
  const stream = await client().chat.completions.create({ ...chat, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.deepEqual(usage.completion_tokens, whole.usage.completion_tokens);
});

test("the stream helper collects events", async () => {
  const pieces = [];
  const stream = client().chat.completions.stream(chat);
  stream.on("content", (piece) => pieces.push(piece));
  const final = await stream.finalContent();
  assert.equal(pieces.join(""), final);
  assert.ok(pieces.length > 3);
});

test("an answer in a schema is parsed", async () => {
  const response_format = compact(zodResponseFormat(answer, "answer"));
  const reply = await client().chat.completions.parse({ ...chat, response_format });
  assert.ok(["noun", "verb"].includes(reply.choices[0].message.parsed.kind));
  assert.equal(typeof reply.choices[0].message.parsed.known, "boolean");
});

test("several choices with log-probabilities", async () => {
  const options = { n: 2, seed: 5, temperature: 1, logprobs: true, top_logprobs: 2, max_completion_tokens: 6 };
  const reply = await client().chat.completions.create({ ...chat, ...options });
  assert.deepEqual(reply.choices.map((choice) => choice.index), [0, 1]);
  for (const choice of reply.choices) {
    assert.equal(choice.logprobs.content.map((token) => token.token).join(""), choice.message.content);
    assert.ok(choice.logprobs.content.every((token) => token.top_logprobs.length === 2));
  }
});

test("completions and models", async () => {
  const reply = await client().completions.create({ model: "tandem", prompt: QUESTION, max_tokens: 4, echo: true, logprobs: 1 });
  assert.ok(reply.choices[0].text.startsWith(QUESTION));
  const models = [];
  for await (const model of client().models.list()) models.push(model.id);
  assert.deepEqual(models, ["tandem"]);
});

test("a stream that is aborted ends, and the server goes on", async () => {
  const request = { model: "tandem", prompt: QUESTION, max_tokens: 900, ignore_eos: true, stream: true };
  const stream = await client().completions.create(request);
  let pieces = 0;
  for await (const _ of stream) {
    if (++pieces === 3) stream.controller.abort();
  }
  assert.ok(pieces >= 3 && pieces < 900);
  const controller = new AbortController();
  const asked = client().completions.create({ ...request, stream: false }, { signal: controller.signal });
  setTimeout(() => controller.abort(), 50);
  await assert.rejects(asked, OpenAI.APIUserAbortError);
  assert.equal((await client().completions.create({ model: "tandem", prompt: "x", max_tokens: 1 })).usage.completion_tokens, 1);
});

test("errors have their classes and fields", async () => {
  await assert.rejects(client().chat.completions.create({ ...chat, temperature: -1 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "temperature");
    assert.equal(error.type, "invalid_request_error");
    return true;
  });
  await assert.rejects(client().chat.completions.create({ ...chat, model: "other" }), OpenAI.NotFoundError);
  await assert.rejects(client({ apiKey: "wrong" }).models.list(), OpenAI.AuthenticationError);
});

test("a full queue is asked again until it has room", async () => {
  const asked = [];
  for (let i = 0; i < 12; ++i) {
    asked.push(client({ maxRetries: 30 }).completions.create({ model: "tandem", prompt: QUESTION, max_tokens: 60 }));
  }
  const replies = await Promise.all(asked);
  assert.equal(replies.length, 12);
});
