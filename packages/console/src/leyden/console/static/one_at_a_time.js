/**
 * Work that never runs twice at once.
 * @module
 */

/**
 * A function that runs `work`. If it is called while the work is under way, the work runs once more afterwards.
 * @param {() => Promise<void>} work which handles its own errors
 * @returns {() => Promise<void>}
 */
export function oneAtATime(work) {
  let isBusy = false;
  let isWanted = false;
  return async function run() {
    isWanted = true;
    if (isBusy) return;
    isBusy = true;
    try {
      while (isWanted) {
        isWanted = false;
        await work();
      }
    } finally {
      isBusy = false;
    }
  };
}
