// The worker of llama.cpp, through node-llama-cpp (npm install node-llama-cpp): same lines of JSON as worker.py.
import {createInterface} from "node:readline";
import {readFileSync} from "node:fs";
import {performance} from "node:perf_hooks";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";
import {availableParallelism} from "node:os";

const answer = (content) => process.stdout.write(JSON.stringify(content) + "\n");
const request = JSON.parse(process.argv[2]);
let context, model;
try {
  // Found where the benchmark is run, not where this file lies.
  const from = createRequire(pathToFileURL(process.cwd() + "/"));
  const {getLlama, LlamaLogLevel} = await import(pathToFileURL(from.resolve("node-llama-cpp")));
  const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error});
  model = await llama.loadModel({modelPath: request.gguf});
  context = await model.createContext({contextSize: 4096, threads: request.threads ?? availableParallelism()});
  const version = llama.llamaCppRelease.release;
  answer({facts: {"llama.cpp": version, threads: context.currentThreads}, arms: ["llamacpp plain"]});
} catch (error) {
  answer({error: `${error.name}: ${error.message}`});
  process.exit(0);
}

for await (const line of createInterface({input: process.stdin})) {
  const {arm, ids, n} = JSON.parse(line);
  try {
    if (arm === null) {
      const peak = readFileSync("/proc/self/status", "utf8").match(/VmHWM:\s+(\d+)/);
      answer({peak_bytes: peak ? Number(peak[1]) * 1024 : null});
      continue;
    }
    const sequence = context.getSequence();
    const tokens = [], start = performance.now();
    let first = 0;
    for await (const token of sequence.evaluate(ids, {temperature: 0, yieldEogToken: true})) {
      if (!tokens.length) first = performance.now() - start;
      tokens.push(token);
      if (tokens.length === n) break;
    }
    const seconds = (performance.now() - start) / 1e3;
    await sequence.dispose();
    answer({tokens, first_seconds: first / 1e3, seconds, passes: n});
  } catch (error) {
    answer({error: `${error.name}: ${error.message}`});
  }
}
process.exit(0);
